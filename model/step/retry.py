"""A step that does not fit into the device's memory, computed in parts with the same result.

Slices do not depend on each other, and a slice may be cut into chunks. The second part of a draft is computed only if
all draft tokens of the first part were accepted.
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
"""Attempts after which memory may be free again."""
MESSAGES = ("out of memory", "ALLOC_FAILED")
"""Parts of out-of-memory messages of CUDA, Triton and cuBLAS, which have no exception class of their own."""


class TokenLimit:
    """The number of tokens in a step that did not fit into memory lately."""

    def __init__(self) -> None:
        self._too_many = math.inf
        self._patience = 0

    def attempt(self, compute: Callable[[], T], batch: StepBatch) -> T | None:
        """The result of `finish`; None also if a step with as many tokens did not fit lately."""
        self._patience -= 1
        if self._patience == 0:
            self._too_many = math.inf
        if 1 < batch.n_tokens >= self._too_many:
            return None
        return self.finish(compute, batch)

    def finish(self, compute: Callable[[], T], batch: StepBatch) -> T | None:
        """The result of `compute` for the batch, or None if the batch did not fit into memory.

        On return the error is released, and with it its frames, which hold tensors.
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


def in_parts(batch: StepBatch, compute: Compute, limit: TokenLimit) -> StepOutput:
    """The result of `compute(batch)`. If it runs out of memory, each half is computed, down to single tokens.

    `compute` may be called again for a part that it has begun. Raises the error if a single token does not fit.
    """
    if (output := limit.attempt(lambda: compute(batch), batch)) is not None:
        return output
    if len(batch.slices) == 1:
        return StepOutput((_in_two(batch.slices[0], compute, limit),))
    cut = _middle([item.stop - item.start for item in batch.slices])
    halves = (StepBatch(batch.slices[:cut]), StepBatch(batch.slices[cut:]))
    return StepOutput(tuple(output for half in halves for output in in_parts(half, compute, limit).slices))


def _of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in MESSAGES)


def _middle(lengths: list[int]) -> int:
    """The number of slices that have half of the tokens; at least one slice is left."""
    sums = list(accumulate(lengths))
    return next(n for n, tokens in enumerate(sums, 1) if 2 * tokens >= sums[-1] or n == len(sums) - 1)


def _in_two(item: Slice, compute: Compute, limit: TokenLimit) -> SliceOutput:
    first, second = _split(item)
    (before,) = in_parts(StepBatch((first,)), compute, limit).slices
    accepted = before.tokens == tuple(item.tokens[len(first.tokens) - first.n_draft : second.start + 1])
    if before.ends or (before.tokens and not accepted):
        return before
    (after,) = in_parts(StepBatch((second,)), compute, limit).slices
    return after if after.ends else _join(before, after)


def _split(item: Slice) -> tuple[Slice, Slice]:
    """Two slices that together compute `item`. The first samples only after draft tokens and the token before them.

    Worked example: tokens 0..9 are known, 10..13 are draft tokens, the slice is 8..13. The first part is 8..10 and
    samples after 9 and after 10. If it accepts 10 and then samples 11, the second part is 11..13.
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
