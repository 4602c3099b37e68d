"""The reader of function calls: it splits the text of an answer into text and calls while tokens arrive."""

import re
import string
from collections.abc import Callable, Iterator
from random import Random, SystemRandom

from model.tokenizers.pieces import n_begun
from service.generation.finish import CALLS
from service.generation.served import ServedModel
from service.schema.tools import AllowedCalls
from service.structured.blocks import AnswerBlock, BlockReader
from service.structured.call_style import ID_CHARS, SHORT_ID, Style, style_of

NAME_CHARS = string.ascii_letters + string.digits + "_.-"
MAX_HEAD_CHARS = 256
"""The limit for the text between a marker and the arguments of its call."""


class ObjectEnd:
    """The finder of the end of a JSON object that arrives in parts; afterwards it finds the end of the next one."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """Return how many characters of the next part `text` the object has; None if its last brace is not there."""
        return next((n for n, char in enumerate(text, 1) if self._closes(char)), None)

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


class CallReader(BlockReader):
    """A state machine that reads one answer in a style, with its calls. An incomplete call marker at the end is text.

    A call has the id that the model writes, if that is one for no other call of the answer. An id after the arguments
    is seen only if it has arrived with the name: a stream names the id first. New ids are drawn from `source`.
    """

    def __init__(self, style: Style, source: Random | None = None) -> None:
        super().__init__()
        self._n_calls = 0
        self._style = style
        self._source = source or SystemRandom()
        self._state: Callable[[bool], bool] = self._text
        self._unread = ""
        self._has_text = False
        self._object = ObjectEnd()
        self._ids: set[str] = set()

    def finish(self, reason: str | None) -> str | None:
        """Return the finish reason: "tool_calls" in place of "stop" if the answer has calls, of which none was cut."""
        called = self._n_calls and self._state != self._arguments
        return CALLS if reason == "stop" and called else reason

    def _read(self, text: str, *, final: bool) -> None:
        self._unread += text
        while self._state(final):
            pass

    def _text(self, final: bool) -> bool:
        at = next((at for at in self._markers() if self._call_begins(at) is not False), None)
        called = at is not None and self._call_begins(at)
        n_text = len(self._unread) - (0 if final else self._n_marker_start()) if at is None else at
        if n_text:
            self._write("text", self._unread[:n_text])
            self._has_text = True
        self._unread = self._unread[n_text:]
        if called:
            self._state = self._before
        return bool(called)

    def _markers(self) -> Iterator[int]:
        """Find the indexes of markers, at which a call may begin."""
        marker = self._style.marker
        if self._style.anchored:
            return iter([0] if self._unread.startswith(marker) and not self._has_text else [])
        return (match.start() for match in re.finditer(re.escape(marker), self._unread))

    def _call_begins(self, at: int) -> bool | None:
        """Return whether a call begins at this marker, not text about calls. None: the text is too short to know."""
        text, style = self._unread[at : at + MAX_HEAD_CHARS], self._style
        begun, rest = _past_words(text, style.first + style.opening)
        if begun:
            begun, rest = self._past_id(rest.lstrip(" ").lstrip(NAME_CHARS))
        if begun:
            begun, _ = _past_words(rest, style.middle)
        return False if begun is None and len(text) == MAX_HEAD_CHARS else begun

    def _past_id(self, text: str) -> tuple[bool | None, str]:
        """Pass an id before the arguments, which may be missing, as `_past_words` does."""
        begun, rest = _past_words(text, self._style.id_before)
        if begun is False:
            return True, text
        return begun, rest.lstrip(" ").lstrip(ID_CHARS) if self._style.id_before else text

    def _n_marker_start(self) -> int:
        """Return the number of characters at the end that may be the beginning of a marker."""
        marker = self._style.marker
        if self._style.anchored:
            return len(self._unread) if not self._has_text and marker.startswith(self._unread) else 0
        return n_begun(self._unread, marker)

    def _before(self, final: bool) -> bool:
        return self._past(self._style.opening, self._name) is not None

    def _name(self, final: bool) -> bool:
        head = self._past(self._style.middle, self._arguments)
        if head is None:
            return False
        name, written = head, self._id_after()
        if before := self._style.id_before:
            name, _, written = head.partition(before)
        self._begin(AnswerBlock("call", self._id(written.strip()), name.strip(), self._n_calls))
        self._n_calls += 1
        return True

    def _id(self, written: str) -> str:
        """Return the id of a call: what the model has `written` if that is an id and a new one, else one of ours."""
        is_new_id = SHORT_ID.fullmatch(written) and written not in self._ids
        call_id = written if is_new_id else self._style.new_id(self._source)
        self._ids.add(call_id)
        return call_id

    def _id_after(self) -> str:
        """Return what is written as the id after the arguments, if that has arrived."""
        if self._style.id_after is None or (end := ObjectEnd().find(self._unread)) is None:
            return ""
        opening, closing = self._style.id_after
        after = self._unread[end:]
        return after.removeprefix(opening).partition(closing)[0] if after.startswith(opening) else ""

    def _past(self, words: str, state: Callable[[bool], bool]) -> str | None:
        """Return the text before the next `words`; then `state` is the next state. None: they have not arrived."""
        before, found, after = self._unread.partition(words)
        if not found:
            return None
        self._unread, self._state = after, state
        return before

    def _arguments(self, final: bool) -> bool:
        """Read a JSON object, up to its last brace."""
        end = self._object.find(self._unread)
        if arguments := self._unread[:end]:
            self._write("call", arguments)
        self._unread = "" if end is None else self._unread[end:]
        if end is not None:
            self._state = self._before
        return end is not None


def _past_words(text: str, words: str) -> tuple[bool | None, str]:
    """Return whether a text begins with the words, and the text after them. None: it is too short to know.

    Spaces do not count: there may be one after a control token.
    """
    awaited = list(words.replace(" ", ""))[::-1]
    for at, char in enumerate(text):
        if not awaited:
            return True, text[at:]
        if char != " " and char != awaited.pop():
            return False, ""
    return (None if awaited else True), ""


def reader_of(served: ServedModel, calls: AllowedCalls, source: Random | None = None) -> BlockReader:
    """Return the reader of an answer, which may have these calls. New ids come from `source`."""
    return CallReader(style_of(served), source) if calls.functions else BlockReader()
