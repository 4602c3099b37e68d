"""The reader of function calls: it splits the text of an answer into text and calls while tokens arrive."""

import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.generation.served import ServedModel
from service.structured.call_style import Style, style_of

NAME_CHARS = string.ascii_letters + string.digits + "_.-"
MAX_HEAD_CHARS = 256
"""The limit for the text between a marker and the arguments of its call."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of the call `index`: first its id and name, then characters of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Piece = str | CallDelta


class CallReader:
    """A state machine that reads one answer in a style. `n_calls` is the number of calls that have begun."""

    def __init__(self, style: Style) -> None:
        self.n_calls = 0
        self._style = style
        self._state: Callable[[list[Piece], bool], bool] = self._text
        self._unread = ""
        self._has_text = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, *, final: bool = False) -> list[Piece]:
        """The pieces that `text` completes. With `final` an incomplete call marker is text."""
        self._unread += text
        pieces: list[Piece] = []
        while self._state(pieces, final):
            pass
        return pieces

    def finish(self, reason: str | None) -> str | None:
        """The finish_reason: "tool_calls" if the answer has calls, and no stop string has cut the last one."""
        called = self.n_calls and self._state != self._arguments
        return "tool_calls" if reason == "stop" and called else reason

    def _text(self, pieces: list[Piece], final: bool) -> bool:
        at = next((at for at in self._markers() if self._call_begins(at) is not False), None)
        called = at is not None and self._call_begins(at)
        n_text = len(self._unread) - (0 if final else self._n_marker_start()) if at is None else at
        if n_text:
            pieces.append(self._unread[:n_text])
            self._has_text = True
        self._unread = self._unread[n_text:]
        if called:
            self._state = self._before
        return bool(called)

    def _markers(self) -> Iterator[int]:
        """Indexes of markers, at which a call may begin."""
        marker = self._style.marker
        if self._style.anchored:
            return iter([0] if self._unread.startswith(marker) and not self._has_text else [])
        return (match.start() for match in re.finditer(re.escape(marker), self._unread))

    def _call_begins(self, at: int) -> bool | None:
        """Whether a call begins at this marker, not text about calls. None: the text is too short to know."""
        text, style = self._unread[at : at + MAX_HEAD_CHARS], self._style
        head, middle = (words.replace(" ", "") for words in (style.first + style.opening, style.middle))
        found = text.replace(" ", "")  # there may be a space after a control token
        after = found.removeprefix(head).lstrip(NAME_CHARS)
        if found.startswith(head) and after.startswith(middle):
            return True
        begins = middle.startswith(after) if found.startswith(head) else head.startswith(found)
        return None if begins and len(text) < MAX_HEAD_CHARS else False

    def _n_marker_start(self) -> int:
        """The number of characters at the end that may be the beginning of a marker."""
        marker = self._style.marker
        if self._style.anchored:
            return len(self._unread) if not self._has_text and marker.startswith(self._unread) else 0
        lengths = range(min(len(self._unread), len(marker) - 1), 0, -1)
        return next((length for length in lengths if self._unread.endswith(marker[:length])), 0)

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
        """The text before the next `words`; then `state` is the next state. None: they have not arrived."""
        before, found, after = self._unread.partition(words)
        if not found:
            return None
        self._unread, self._state = after, state
        return before

    def _arguments(self, pieces: list[Piece], final: bool) -> bool:
        """Read a JSON object, up to its last brace."""
        end = next((n for n, char in enumerate(self._unread, 1) if self._closes(char)), None)
        if arguments := self._unread[:end]:
            pieces.append(CallDelta(self.n_calls - 1, arguments=arguments))
        self._unread = "" if end is None else self._unread[end:]
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
    """The reader of an answer, or None for an answer that cannot have calls."""
    return CallReader(style_of(served)) if may_call else None


def pieces_of(reader: CallReader | None, text: str, *, final: bool) -> list[Piece]:
    """The pieces of an answer's next text."""
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
    """The text and the calls of a whole answer."""
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, CallDelta) and piece.name is not None:
            function = {"name": piece.name, "arguments": ""}
            calls.append({"id": piece.id, "type": "function", "function": function})
        elif isinstance(piece, CallDelta):
            calls[piece.index]["function"]["arguments"] += piece.arguments
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls
