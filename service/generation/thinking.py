"""The thought before an answer: it is taken out of the bytes of the tokens, or only counted."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from model.chat.reasoning import Marks
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import n_begun

Phase = Literal["before", "inside", "after"]
"""The position of a place in an answer, relative to the thought."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The marks of a thought, and where the prompt ends: "before" it, "inside" it or "after" it.

    A mark that is a control token counts only as that token. `opening` and `closing` are its id then. Without `apart`
    the thought is part of the text. `continues`: the prompt ends with text that the answer continues.
    """

    marks: Marks
    phase: Phase
    opening: int | None = None
    closing: int | None = None
    apart: bool = True
    continues: bool = False

    @classmethod
    def of(
        cls, marks: Marks, phase: Phase, tokenizer: Tokenizer, *, apart: bool = True, continues: bool = False
    ) -> "Reasoning":
        control = tokenizer.control
        return cls(marks, phase, control.get(marks.opening), control.get(marks.closing), apart, continues)


class ThoughtReader:
    """The reader of one answer: `push` takes a token and returns the bytes of the answer, `take` returns the thought.

    An answer has one thought at most, with nothing but white space before it. A later opening mark opens nothing: what
    follows it is text. `n_tokens` counts the tokens of the thought, with its marks. Bytes that may be the beginning of
    a mark wait until more decide. An incomplete UTF-8 sequence at the end of the thought is dropped.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self.n_tokens = 0
        self._reasoning = reasoning
        self._phase = reasoning.phase
        self._opening, self._closing = (mark.encode() for mark in (reasoning.marks.opening, reasoning.marks.closing))
        self._waiting: list[bytes] = []  # of tokens before the thought that may be its opening mark
        self._held = b""  # the end of the thought that may belong to its closing mark
        self._thought = b""  # what was not taken
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = reasoning.continues  # whether the thought, or the answer after it, has text

    def push(self, token: int, data: bytes) -> Sequence[bytes]:
        """Read a token with its bytes. Return the bytes that each token, of those decided now, adds to the answer."""
        if self._phase == "before":
            answer = self._before(token, data)
        else:
            answer = (self._inside(token, data) if self._phase == "inside" else self._trimmed(data),)
        return answer if self._reasoning.apart else (data,)

    def flush(self) -> Sequence[bytes]:
        """Return the bytes that waited for a mark, for each token: no mark follows."""
        if self._phase == "inside":
            self._end()
        waiting, self._waiting = self._waiting, []
        self._phase = "after" if self._phase == "before" else self._phase
        self._begun = True
        return waiting if self._reasoning.apart else ()

    def take(self) -> str:
        """Return the new text of the thought; none if the thought is part of the answer. At the end, `flush` first."""
        data, self._thought = self._thought, b""
        return self._decoder.decode(data) if self._reasoning.apart else ""

    def _before(self, token: int, data: bytes) -> Sequence[bytes]:
        """Read a token before the thought, or of an answer without one."""
        self._waiting.append(data)
        if token == self._reasoning.opening:
            return self._enter(b"")
        text = b"".join(self._waiting).lstrip()
        opening = self._opening if self._reasoning.opening is None else b""
        if opening and text.startswith(opening):
            return self._enter(text.removeprefix(opening))
        return () if not text or opening.startswith(text) else self.flush()

    def _enter(self, first: bytes) -> Sequence[bytes]:
        """Begin the thought; `first` is its first text."""
        n_marks = len(self._waiting)
        self.n_tokens += n_marks
        self._waiting = []
        self._phase, self._begun = "inside", False
        return (*[b""] * (n_marks - 1), self._thinking(first))

    def _inside(self, token: int, data: bytes) -> bytes:
        self.n_tokens += 1
        return self._leave(b"") if token == self._reasoning.closing else self._thinking(data)

    def _thinking(self, data: bytes) -> bytes:
        """Read bytes of a thought, which may end in them."""
        text = self._held + data
        if self._reasoning.closing is None and self._closing in text:
            self._held, _, first = text.partition(self._closing)
            return self._leave(first)
        n_held = self._n_held(text)
        self._think(text[: len(text) - n_held])
        self._held = text[len(text) - n_held :]
        return b""

    def _n_held(self, text: bytes) -> int:
        """Return the number of bytes at the end that may belong to the closing mark."""
        n_mark = n_begun(text, self._closing) if self._reasoning.closing is None else 0
        before = text[: len(text) - n_mark]
        return n_mark + (len(before) - len(before.rstrip()) if self._reasoning.marks.trims else 0)

    def _think(self, data: bytes) -> None:
        self._thought += self._trimmed(data)

    def _end(self) -> None:
        """Take what was held for the closing mark: the thought ends."""
        self._think(self._held.rstrip() if self._reasoning.marks.trims else self._held)
        self._held = b""

    def _leave(self, first: bytes) -> bytes:
        """End the thought; `first` is the first text of the answer."""
        self._end()
        self._phase, self._begun = "after", False
        return self._trimmed(first)

    def _trimmed(self, data: bytes) -> bytes:
        """Return bytes without the white space after a mark, which is before the first text of thought or answer."""
        if self._reasoning.marks.trims and not self._begun:
            data = data.lstrip()
        self._begun = self._begun or bool(data)
        return data
