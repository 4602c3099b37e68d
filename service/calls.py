"""How models write calls of functions, and how such text is read while it comes."""

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.served import ServedModel


@dataclass(frozen=True, slots=True)
class Style:
    """The words around names and arguments. Worked example, "hermes", two calls:

        <tool_call>                                                first
        {"name": "f", "arguments": {"a": 1}}                       opening, name, middle, arguments, closing
        </tool_call>                                               closing
        <tool_call>                                                between
        {"name": "g", "arguments": {}}
        </tool_call>

    `marker` begins the first call: what precedes it is text, none if it is `anchored` to the answer's start. `extra` is
    a regex of what models may write before `closing`. Control tokens stand for themselves by name.
    """

    marker: str
    first: str
    opening: str
    middle: str
    closing: str
    between: str
    last: str = ""
    extra: str = ""
    anchored: bool = False
    short_ids: bool = False

    @property
    def control(self) -> tuple[str, ...]:
        """Names of tokens that must be seen to tell a call."""
        return tuple(re.findall(r"\[[A-Z_]+\]", self.first + self.opening + self.middle))

    def new_id(self) -> str:
        """Mistral's formats take nine letters or digits, others anything."""
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9)) if self.short_ids else f"call_{secrets.token_hex(12)}"


STYLES: Mapping[str, Style] = {
    "hermes": Style(
        marker="<tool_call>",
        first="<tool_call>\n",
        opening='{"name": "',
        middle='", "arguments": ',
        closing="}\n</tool_call>",
        between="\n<tool_call>\n",
    ),
    "llama": Style(
        marker='{"name": "',
        first="",
        opening='{"name": "',
        middle='", "parameters": ',
        closing="}",
        between="; ",
        anchored=True,
    ),
    "mistral": Style(
        marker="[TOOL_CALLS]",
        first="[TOOL_CALLS][",
        opening='{"name": "',
        middle='", "arguments": ',
        closing="}",
        between=", ",
        last="]",
        extra='(, "id": "[a-zA-Z0-9]{9}")?',
        short_ids=True,
    ),
    "mistral-args": Style(
        marker="[TOOL_CALLS]",
        first="",
        opening="[TOOL_CALLS]",
        middle="[ARGS]",
        closing="",
        between="",
        short_ids=True,
    ),
}


def style_of(served: ServedModel) -> Style:
    """That of the model's chat format; the one that is explained in words where it has none."""
    return STYLES[(served.chat and served.chat.call_style) or "hermes"]


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
        """The finish_reason of an answer that may have called."""
        return "tool_calls" if reason == "stop" and self.n_calls else reason

    def _text(self, pieces: list[Piece], final: bool) -> bool:
        marker = self._style.marker
        at = -1 if self._style.anchored and self._begun else self._rest.find(marker)
        if at > 0 and self._style.anchored:
            at = -1
        shown = at if at >= 0 else len(self._rest) - (0 if final else self._held())
        if shown:
            pieces.append(self._rest[:shown])
            self._begun = True
        self._rest = self._rest[shown:]
        if at >= 0:
            self._state = self._before
        return at >= 0

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
