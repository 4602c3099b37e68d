"""Blocks of an answer, which follow one another: its thought, its text and its calls. Each API has its own JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from service.generation.choice import Delta
from service.structured.call_reader import CallReader

Kind = Literal["thought", "text", "call"]


@dataclass(slots=True)
class AnswerBlock:
    """A part of an answer. A call has an id, a name and an `index` among the calls; its text is its arguments."""

    kind: Kind
    id: str = ""
    name: str = ""
    index: int = 0
    written: StringIO = field(default_factory=StringIO)

    @property
    def text(self) -> str:
        return self.written.getvalue()


class BlockStep(NamedTuple):
    """The change of a block: it begins, it has more `text`, or it ends. `last`: the answer ends with it."""

    change: Literal["begin", "text", "end"]
    block: AnswerBlock
    text: str = ""
    last: bool = False


class BlockReader:
    """Splits one answer into blocks while it arrives. With a `reader` its text may contain calls."""

    def __init__(self, reader: CallReader | None = None) -> None:
        self._reader = reader
        self._open: AnswerBlock | None = None

    def feed(self, delta: Delta) -> Sequence[BlockStep]:
        """Return the steps of the next delta. The last delta ends the last block."""
        steps: list[BlockStep] = []
        if delta.thought:
            self._write(steps, "thought", delta.thought)
        final, pieces = delta.finish is not None, [delta.text] if delta.text else []
        for piece in self._reader.feed(delta.text, final=final) if self._reader else pieces:
            if isinstance(piece, str):
                self._write(steps, "text", piece)
            elif piece.id is not None and piece.name is not None:
                self._begin(steps, AnswerBlock("call", piece.id, piece.name, piece.index))
            else:
                self._write(steps, "call", piece.arguments)
        if final:
            self._end(steps, last=True)
        return steps

    def finish(self, reason: str | None) -> str | None:
        """Return the finish reason, which the reader of calls may change."""
        return self._reader.finish(reason) if self._reader else reason

    def _write(self, steps: list[BlockStep], kind: Kind, text: str) -> None:
        block = self._open
        if block is None or block.kind != kind:
            block = self._begin(steps, AnswerBlock(kind))
        block.written.write(text)
        steps.append(BlockStep("text", block, text))

    def _begin(self, steps: list[BlockStep], block: AnswerBlock) -> AnswerBlock:
        self._end(steps, last=False)
        self._open = block
        steps.append(BlockStep("begin", block))
        return block

    def _end(self, steps: list[BlockStep], *, last: bool) -> None:
        if self._open is not None:
            steps.append(BlockStep("end", self._open, last=last))
        self._open = None


def arguments_of(written: str, *, partial: bool = False) -> Any:
    """Return the value of a call's arguments, None if the call was cut; with `partial` what is whole of them."""
    try:
        return from_json(written, allow_partial=partial)
    except ValueError:
        return None
