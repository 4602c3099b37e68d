"""Calls of functions, read from the text of an answer while it comes."""

import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.generation.served import ServedModel
from service.structured.call_style import Style, style_of

NAME_CHARS = string.ascii_letters + string.digits + "_.-"
MAX_HEAD_CHARS = 256
"""Of what precedes a call's arguments."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of call `index`: its id and name, once, or the next characters of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Piece = str | CallDelta


class CallReader:
    """Tells text from calls in one answer, which keeps to a style's grammar. `n_calls` counts those begun."""

    def __init__(self, style: Style) -> None:
        self.n_calls = 0
        self._style = style
        self._state: Callable[[list[Piece], bool], bool] = self._text
        self._rest = ""
        self._begun = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, *, final: bool = False) -> list[Piece]:
        """What can be told now. With `final` text that looked like the beginning of a call is text."""
        self._rest += text
        pieces: list[Piece] = []
        while self._state(pieces, final):
            pass
        return pieces

    def finish(self, reason: str | None) -> str | None:
        """The finish_reason of an answer that may have called; not where a stop string has cut the last call."""
        called = self.n_calls and self._state != self._arguments
        return "tool_calls" if reason == "stop" and called else reason

    def _text(self, pieces: list[Piece], final: bool) -> bool:
        at = next((at for at in self._markers() if self._calls(at) is not False), None)
        called = at is not None and self._calls(at)
        shown = len(self._rest) - (0 if final else self._held()) if at is None else at
        if shown:
            pieces.append(self._rest[:shown])
            self._begun = True
        self._rest = self._rest[shown:]
        if called:
            self._state = self._before
        return bool(called)

    def _markers(self) -> Iterator[int]:
        """Places of markers where a call may begin."""
        marker = self._style.marker
        if self._style.anchored:
            return iter([0] if self._rest.startswith(marker) and not self._begun else [])
        return (match.start() for match in re.finditer(re.escape(marker), self._rest))

    def _calls(self, at: int) -> bool | None:
        """Whether the text goes on there as a call begins, and not as text about one; None: so far."""
        text, style = self._rest[at : at + MAX_HEAD_CHARS], self._style
        head, middle = (words.replace(" ", "") for words in (style.first + style.opening, style.middle))
        found = text.replace(" ", "")  # after a control token there may be one
        rest = found.removeprefix(head).lstrip(NAME_CHARS)
        if found.startswith(head) and rest.startswith(middle):
            return True
        begun = middle.startswith(rest) if found.startswith(head) else head.startswith(found)
        return None if begun and len(text) < MAX_HEAD_CHARS else False

    def _held(self) -> int:
        """Characters at the end of the text that may be the beginning of a marker."""
        marker = self._style.marker
        if self._style.anchored:
            return len(self._rest) if not self._begun and marker.startswith(self._rest) else 0
        lengths = range(min(len(self._rest), len(marker) - 1), 0, -1)
        return next((length for length in lengths if self._rest.endswith(marker[:length])), 0)

    def _before(self, pieces: list[Piece], final: bool) -> bool:
        return self._past(self._style.opening, self._name) is not None

    def _name(self, pieces: list[Piece], final: bool) -> bool:
        name = self._past(self._style.middle, self._arguments)
        if name is None:
            return False
        pieces.append(CallDelta(self.n_calls, self._style.new_id(), name.strip()))
        self.n_calls += 1
        return True

    def _past(self, words: str, state: Callable[[list[Piece], bool], bool]) -> str | None:
        """What is before the next such words, once they are there: then the state is the next one."""
        before, found, after = self._rest.partition(words)
        if not found:
            return None
        self._rest, self._state = after, state
        return before

    def _arguments(self, pieces: list[Piece], final: bool) -> bool:
        """A JSON object, to its last brace."""
        end = next((n for n, char in enumerate(self._rest, 1) if self._closes(char)), None)
        if arguments := self._rest[:end]:
            pieces.append(CallDelta(self.n_calls - 1, arguments=arguments))
        self._rest = "" if end is None else self._rest[end:]
        if end is not None:
            self._state = self._before
        return end is not None

    def _closes(self, char: str) -> bool:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return not self._depth
        return False


def reader_of(served: ServedModel, may_call: bool) -> CallReader | None:
    """What reads an answer's calls, if it may hold any."""
    return CallReader(style_of(served)) if may_call else None


def pieces_of(reader: CallReader | None, text: str, *, final: bool) -> list[Piece]:
    """An answer's next text as its reader tells it."""
    if reader is not None:
        return reader.feed(text, final=final)
    return [text] if text else []


def piece_json(piece: Piece) -> dict[str, Any]:
    """A piece as the delta of a chat message."""
    if isinstance(piece, str):
        return {"content": piece}
    function = {"arguments": piece.arguments} if piece.name is None else {"name": piece.name, "arguments": ""}
    known = {} if piece.id is None else {"id": piece.id, "type": "function"}
    return {"tool_calls": [{"index": piece.index, **known, "function": function}]}


def gathered(pieces: Sequence[Piece]) -> tuple[str, list[dict[str, Any]]]:
    """All pieces of an answer as its text and its calls."""
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, CallDelta) and piece.name is not None:
            function = {"name": piece.name, "arguments": ""}
            calls.append({"id": piece.id, "type": "function", "function": function})
        elif isinstance(piece, CallDelta):
            calls[piece.index]["function"]["arguments"] += piece.arguments
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls
