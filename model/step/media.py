"""The images and audio of a runner: the embeddings that it keeps, what it encodes, and their rows in a step."""

import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from model.batch import StepBatch
from model.machine.device import of_memory
from model.machine.transfers import Ints, upload
from model.media import MediaWork
from model.network.encoding import Encoder, Encoding

log = logging.getLogger(__name__)

FAULT = "the engine could not encode an image or audio of this request"


class Encodings:
    """The media items of one runner by their numbers: embeddings [rows * columns, dim], or work that is not complete.

    The scheduler decides what is encoded and forgotten. `encoder` is None for a model of text.
    """

    def __init__(self, encoder: Encoder | None) -> None:
        self._encoder = encoder
        self._encodings: dict[int, Encoding] = {}
        self._embeddings: dict[int, Tensor] = {}

    def update(self, batch: StepBatch) -> dict[int, str]:
        """Forget items, then do the work on others. Returns the faults of those that cannot be encoded."""
        for number in batch.forgotten:
            self.drop(number)
        results = {work.number: self._encode(work) for work in batch.media}
        return {number: fault for number, fault in results.items() if fault is not None}

    def drop(self, number: int) -> None:
        """Forget an item, if it is there."""
        self._encodings.pop(number, None)
        self._embeddings.pop(number, None)

    def place(self, batch: StepBatch, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Return the rows [n] of a step that have embeddings in place of tokens, and these embeddings [n, dim]."""
        parts = list(_parts(batch))
        if not parts:
            return None
        numbers, rows, entries = zip(*parts, strict=True)
        tensors = upload([*rows, *entries], device)
        values = [
            self._embeddings[number].index_select(0, entry)
            for number, entry in zip(numbers, tensors[len(parts) :], strict=True)
        ]
        return torch.cat(tensors[: len(parts)]), torch.cat(values)

    def _encode(self, work: MediaWork, *, again: bool = True) -> str | None:
        """Do a part of an item, a second time if memory runs out; return the fault of an item that raises."""
        try:
            self._advance(work)
            return None
        except Exception as error:
            if not again or not of_memory(error):
                log.exception("media item %d cannot be encoded", work.number)
                self.drop(work.number)
                return f"{FAULT} ({type(error).__name__})"
            log.warning("memory ran out while media item %d was encoded: it is tried again", work.number)
        torch.cuda.empty_cache()
        return self._encode(work, again=False)

    def _advance(self, work: MediaWork) -> None:
        """Do the work up to `work.stop`; from the beginning if that is requested, or if nothing is there."""
        if work.start == 0:
            self.drop(work.number)
        assert self._encoder is not None, "the model has no encoder"
        encoding = self._encodings.get(work.number)
        if encoding is None:
            encoding = self._encodings[work.number] = self._encoder.begin(work.inputs, work.rows, work.columns)
        self._encoder.advance(encoding, work.stop)
        if encoding.complete:
            self._embeddings[work.number] = self._encodings.pop(work.number).embeddings


def _parts(batch: StepBatch) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield for each item of each slice: its number, the rows [n] of the step that it fills, their embeddings [n].

    Worked example: an image of 2 x 3 from position 10, a slice of 12..16 that begins with row 5 of the step. Position
    13 is a break token. 12, 14, 15 and 16 are rows 5, 7, 8 and 9, and have the embeddings 2, 3, 4 and 5.
    """
    first = 0
    for item in batch.slices:
        for placed in item.media:
            span = placed.span
            positions = np.arange(max(item.start, span.start), min(item.stop, span.stop))
            row, column = np.divmod(positions - span.start, span.columns + span.breaks)
            inside = column < span.columns
            yield placed.number, positions[inside] + (first - item.start), (row * span.columns + column)[inside]
        first += item.stop - item.start
