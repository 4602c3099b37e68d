"""A step for which the device's memory does not suffice, computed in parts that give what the whole would have given.

Slices do not see each other, and a slice in two chunks is the same slice. A draft's second part is computed only if
the first agreed with all of its own.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from operator import add
from typing import TypeVar

import torch

from model.batch import Slice, SliceOutput, StepBatch, StepOutput

log = logging.getLogger(__name__)

T = TypeVar("T")
Compute = Callable[[StepBatch], StepOutput]

PATIENCE = 64
"""Attempts after which memory may be there again."""
SAID = ("out of memory", "ALLOC_FAILED")
"""What errors say for want of memory that are not PyTorch's own, but CUDA's, Triton's or cuBLAS's."""


class Room:
    """What does not fit into memory: so many tokens of a step, as was found lately."""

    def __init__(self) -> None:
        self._too_many = math.inf
        self._patience = 0

    def attempt(self, compute: Callable[[], T], batch: StepBatch) -> T | None:
        """As `finish`; None also if memory did not suffice for so many lately."""
        self._patience -= 1
        if self._patience == 0:
            self._too_many = math.inf
        if 1 < batch.n_tokens >= self._too_many:
            return None
        return self.finish(compute, batch)

    def finish(self, compute: Callable[[], T], batch: StepBatch) -> T | None:
        """What `compute` gives for the batch, or None if memory did not suffice.

        On return the error is gone, and with it its frames, which hold tensors.
        """
        try:
            return compute()
        except RuntimeError as error:
            if batch.n_tokens == 1 or not _of_memory(error):
                raise
            self._too_many, self._patience = batch.n_tokens, PATIENCE
            log.warning("%d tokens of a step do not fit into memory: they are computed in two parts", batch.n_tokens)
        torch.cuda.empty_cache()
        return None


def in_parts(batch: StepBatch, compute: Compute, room: Room) -> StepOutput:
    """`compute(batch)`; where it runs out of memory, that of two parts, down to single tokens.

    `compute` may be called again for any part of what it began. Raises the error if a single token does not fit.
    """
    if (output := room.attempt(lambda: compute(batch), batch)) is not None:
        return output
    if len(batch.slices) == 1:
        return StepOutput((_in_two(batch.slices[0], compute, room),))
    cut = _middle([item.stop - item.start for item in batch.slices])
    halves = (StepBatch(batch.slices[:cut]), StepBatch(batch.slices[cut:]))
    return StepOutput(tuple(output for half in halves for output in in_parts(half, compute, room).slices))


def _of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SAID)


def _middle(lengths: list[int]) -> int:
    """How many slices, all but one at most, make up half of the tokens."""
    sums = list(accumulate(lengths))
    return next(n for n, tokens in enumerate(sums, 1) if 2 * tokens >= sums[-1] or n == len(sums) - 1)


def _in_two(item: Slice, compute: Compute, room: Room) -> SliceOutput:
    first, rest = _split(item)
    (before,) = in_parts(StepBatch((first,)), compute, room).slices
    agreed = before.tokens == tuple(item.tokens[len(first.tokens) - first.n_draft : rest.start + 1])
    if before.failure is not None or (before.tokens and not agreed):
        return before
    (after,) = in_parts(StepBatch((rest,)), compute, room).slices
    return after if after.failure is not None else _join(before, after)


def _split(item: Slice) -> tuple[Slice, Slice]:
    """Two slices that compute what `item` does; the first draws only along a draft.

    Worked example: tokens 0..9 known, 10..13 a draft, the slice is 8..13. The first is 8..10 and draws after 9 and
    after 10, if that is right; if the last of these is 11, the second is 11..13 and draws after each.
    """
    middle = (item.start + item.stop) // 2
    known = len(item.tokens) - item.n_draft
    if middle < known:
        return replace(item, stop=middle, n_draft=0), replace(item, start=middle)
    first = replace(item, tokens=item.tokens[:middle], stop=middle, n_draft=middle - known)
    return first, replace(item, start=middle, n_draft=item.stop - middle - 1)


def _join(before: SliceOutput, after: SliceOutput) -> SliceOutput:
    both = before.pooled and after.pooled
    return SliceOutput(
        tokens=before.tokens + after.tokens,
        logprobs=before.logprobs + after.logprobs,
        prompt_logprobs=before.prompt_logprobs + after.prompt_logprobs,
        pooled=tuple(map(add, before.pooled, after.pooled)) if both else before.pooled or after.pooled,
    )
