"""The text of a choice that may begin with a thought: the thought apart, the answer as its own text."""

import codecs
from dataclasses import dataclass
from typing import Literal

from model.chat.reasoning import Marks
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import n_begun
from service.generation.text import Released, TextStream

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


class ThinkingStream:
    """The text of one choice, as `TextStream` has it, and its thought: `take_thought` returns new text of it.

    An answer has one thought at most, with nothing but white space before it. A later opening mark opens nothing: what
    follows it is text. `text` gets the answer's bytes, so stop strings end answers only. `n_thought` counts the tokens
    of the thought, with its marks. Text that may be the beginning of a mark waits until more decides. An incomplete
    UTF-8 sequence at the end of the thought is dropped.
    """

    def __init__(self, reasoning: Reasoning, text: TextStream) -> None:
        self.n_thought = 0
        self._reasoning = reasoning
        self._phase = reasoning.phase
        self._text = self._answer = text
        self._opening, self._closing = (mark.encode() for mark in (reasoning.marks.opening, reasoning.marks.closing))
        self._waiting: list[bytes] = []  # of tokens before the thought that may be its opening mark
        self._held = b""  # the end of the thought that may belong to its closing mark
        self._thought = b""  # what was not taken
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = reasoning.continues  # whether the thought, or the answer after it, has text
        self._final = False

    @property
    def stopped_by(self) -> str | None:
        return self._answer.stopped_by

    @property
    def length(self) -> int:
        return self._answer.length

    def push(self, token: int) -> bool:
        """Add a token. True if it completes a stop string: the text ends, and no token may follow."""
        data = self._text.bytes_of(token)
        if self._phase == "before":
            return self._before(data, token)
        return self._inside(data, token) if self._phase == "inside" else self._after(data)

    def take(self, *, final: bool = False) -> Released:
        """Return the new text of the answer; with `final` all that is left."""
        if final and not self._final:
            self._final = True
            self._flush()
        return self._text.take(final=final)

    def take_thought(self) -> str:
        """Return the new text of the thought. At the end it comes after `take`."""
        data, self._thought = self._thought, b""
        return self._decoder.decode(data)

    def _before(self, data: bytes, token: int) -> bool:
        """Take a token before the thought, or of an answer without one."""
        self._waiting.append(data)
        if token == self._reasoning.opening:
            return self._enter(b"")
        text = b"".join(self._waiting).lstrip()
        opening = self._opening if self._reasoning.opening is None else b""
        if opening and text.startswith(opening):
            return self._enter(text.removeprefix(opening))
        if not text or opening.startswith(text):
            return False
        return self._flush()

    def _flush(self) -> bool:
        """Make text of what waited for a mark: no mark follows."""
        if self._phase == "inside":
            self._think(self._held.rstrip() if self._reasoning.marks.trims else self._held)
            self._held = b""
        waiting, self._waiting = self._waiting, []
        self._phase = "after" if self._phase == "before" else self._phase
        self._begun = True
        return any(self._text.add(data) for data in waiting)  # nothing follows a stop string

    def _enter(self, first: bytes) -> bool:
        """Begin the thought; `first` is its first text."""
        n_marks = len(self._waiting)
        self.n_thought += n_marks
        self._waiting = []
        self._phase, self._begun = "inside", False
        for _ in range(n_marks - 1):
            self._text.add(b"")
        return self._thinking(first)

    def _inside(self, data: bytes, token: int) -> bool:
        self.n_thought += 1
        if token == self._reasoning.closing:
            return self._leave(b"")
        return self._thinking(data)

    def _thinking(self, data: bytes) -> bool:
        """Take bytes of a thought, which may end in them."""
        text = self._held + data
        if self._reasoning.closing is None and self._closing in text:
            self._held, _, first = text.partition(self._closing)
            return self._leave(first)
        n_held = self._n_held(text)
        self._think(text[: len(text) - n_held])
        self._held = text[len(text) - n_held :]
        return self._text.add(b"")

    def _n_held(self, text: bytes) -> int:
        """Return the number of bytes at the end that may belong to the closing mark."""
        n_mark = n_begun(text, self._closing) if self._reasoning.closing is None else 0
        before = text[: len(text) - n_mark]
        return n_mark + (len(before) - len(before.rstrip()) if self._reasoning.marks.trims else 0)

    def _think(self, data: bytes) -> None:
        if self._reasoning.marks.trims and not self._begun:
            data = data.lstrip()
        self._begun = self._begun or bool(data)
        self._thought += data

    def _leave(self, first: bytes) -> bool:
        """End the thought; `first` is the first text of the answer."""
        self._think(self._held.rstrip() if self._reasoning.marks.trims else self._held)
        self._held = b""
        self._phase, self._begun = "after", False
        return self._after(first)

    def _after(self, data: bytes) -> bool:
        """Take bytes of the answer. White space before it belongs to the mark."""
        if self._reasoning.marks.trims and not self._begun:
            data = data.lstrip()
        self._begun = self._begun or bool(data)
        return self._text.add(data)


class CountingStream(ThinkingStream):
    """The text of one choice with its thought in it. `n_thought` counts the tokens of the thought, with its marks."""

    def __init__(self, reasoning: Reasoning, text: TextStream, tokenizer: Tokenizer) -> None:
        super().__init__(reasoning, TextStream(tokenizer))
        self._answer = text

    def push(self, token: int) -> bool:
        """Add a token. True if it completes a stop string: the text ends, and no token may follow."""
        super().push(token)
        return self._answer.push(token)

    def take(self, *, final: bool = False) -> Released:
        """Return the new text; with `final` all that is left."""
        super().take(final=final)
        super().take_thought()
        return self._answer.take(final=final)

    def take_thought(self) -> str:
        """Return no text: the thought is part of the answer's."""
        return ""
