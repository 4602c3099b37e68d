"""The runner of one rank: it computes its part of each step, and samples if it is the rank that does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.batch import Slice, StepBatch, StepOutput
from model.network.expert_load import Counts
from model.sharding.layout import Place
from model.step import sampler
from model.step.ahead import LastTokens
from model.step.runner import ModelRunner, Started


class PartRunner(ModelRunner):
    """A `ModelRunner` at a `place` in a group. The ranks of a stage send and receive in the same order.

    A step that raises is not computed in parts, because the other ranks would not know. Its output is that of the whole
    step on the rank that samples, and empty on the others.
    """

    def __init__(self, place: Place, *parts: Any) -> None:
        super().__init__(*parts)
        self._place = place

    @property
    def layer_counts(self) -> Counts:
        """`expert_tokens` with an entry for each layer of its stage, also if none has experts."""
        return self.expert_tokens or ((),) * len(self._model.layers)

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step. Raises RuntimeError for an image that cannot be encoded."""
        if not self._place.is_first:
            batch = StepBatch(tuple(replace(item, images=()) for item in batch.slices))
        if faults := self._images.update(batch):
            raise RuntimeError(next(iter(faults.values())))
        if not batch.slices:
            return partial(StepOutput, ())
        if self._place.samples:
            self._masks.start([item.samples for item in batch.slices])
        return partial(self._finish, batch, self._start(batch, self._last))

    def _start(self, batch: StepBatch, before: LastTokens) -> Started:
        if self._place.is_last:
            return super()._start(batch, before)
        self._hidden(self._pack(batch, before, self._tables.device), before.tokens)
        return Started(before, (), ())

    def _sample(self, rows: Tensor, slices: list[Slice], *, computed: bool = False) -> Iterator[sampler.Sampled]:
        if self._place.samples:
            yield from super()._sample(rows, slices, computed=computed)
        else:
            self._give_logits(rows)

    @torch.inference_mode()
    def _finish(self, batch: StepBatch, started: Started) -> StepOutput:
        if self._place.samples:
            return self._collect(batch, started)
        for row, n_rows in started.score_rows:
            self._give_logits(started.hidden[row : row + n_rows])
        return StepOutput(())

    def _give_logits(self, hidden: Tensor) -> None:
        """Compute its columns of the logits, in the blocks of the rank that samples, which gathers them."""
        size = self._block_rows()
        for first in range(0, len(hidden), size):
            self._model.logits(hidden[first : first + size])
