"""Blocks of an answer, which follow one another: its thought, its text and its calls. Each API has its own JSON."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson
from pydantic_core import from_json

from service.generation.choice import Delta

Kind = Literal["thought", "text", "call"]


@dataclass(slots=True)
class AnswerBlock:
    """A part of an answer. A call has an id, a name and an `index` among the calls; its text is its arguments."""

    kind: Kind
    id: str = ""
    name: str = ""
    index: int = 0
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


class BlockStep(NamedTuple):
    """The change of a block: it begins, it has more `text`, or it ends. `last`: the answer ends with it."""

    change: Literal["begin", "text", "end"]
    block: AnswerBlock
    text: str = ""
    last: bool = False


class BlockReader:
    """The reader of one answer: it splits the answer into blocks while it arrives, its thought and its text."""

    def __init__(self) -> None:
        self._open: AnswerBlock | None = None
        self._steps: list[BlockStep] = []

    def feed(self, delta: Delta) -> list[BlockStep]:
        """Return the steps of the next delta. The last delta ends the last block."""
        steps, final = self._steps, delta.finish is not None
        if delta.thought:
            self._write("thought", delta.thought)
        self._read(delta.text, final=final)
        if final:
            self._end(last=True)
        self._steps = []
        return steps

    def finish(self, reason: str | None) -> str | None:
        """Return the finish reason of an answer that the engine finished for this reason."""
        return reason

    def _read(self, text: str, *, final: bool) -> None:
        """Take the next text, which may be empty."""
        if text:
            self._write("text", text)

    def _write(self, kind: Kind, text: str) -> None:
        block = self._open
        if block is None or block.kind != kind:
            block = self._begin(AnswerBlock(kind))
        block.parts.append(text)
        self._steps.append(BlockStep("text", block, text))

    def _begin(self, block: AnswerBlock) -> AnswerBlock:
        self._end(last=False)
        self._open = block
        self._steps.append(BlockStep("begin", block))
        return block

    def _end(self, *, last: bool) -> None:
        if self._open is not None:
            self._steps.append(BlockStep("end", self._open, last=last))
        self._open = None


def arguments_of(written: str, *, partial: bool = False) -> Any:
    """Return the value of a call's arguments, None if the call was cut; with `partial` what is whole of them.

    An integer of more than 64 bits becomes a float: orjson, which writes it again, has none.
    """
    try:
        return orjson.loads(written)
    except ValueError:
        return from_json(written, allow_partial=True) if partial and written else None
