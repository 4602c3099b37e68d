"""A step that failed, computed in parts with the same result: it did not fit into memory, or a slice makes it raise.

Slices do not depend on each other, so a slice that fails alone ends alone. For want of memory a slice is also cut into
chunks. The second part of a draft is computed only if all draft tokens of the first part were accepted.
A step may be computed again: the same keys and values are written to the same places.
"""

import logging
import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import add
from typing import TypeVar

import torch

from model.batch import Slice, SliceOutput, StepBatch, StepOutput
from model.machine.device import of_memory

log = logging.getLogger(__name__)

T = TypeVar("T")
Compute = Callable[[StepBatch], StepOutput]

PATIENCE = 64
"""Attempts after which memory may be free again."""


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
        """The result of `compute` for the batch, or None if it failed and parts of the batch may succeed.

        On return the error is released, and with it its frames, which hold tensors.
        """
        try:
            return compute()
        except Exception as error:
            if not of_memory(error):
                if len(batch.slices) == 1:
                    raise
                log.warning("a step of %d sequences failed: it is computed in parts (%r)", len(batch.slices), error)
                return None
            if batch.n_tokens == 1:
                self._too_many = math.inf  # not for want of size: larger steps may fit again
                raise
            self._too_many, self._patience = batch.n_tokens, PATIENCE
            log.warning("%d tokens of a step do not fit into memory: they are computed in two parts", batch.n_tokens)
        torch.cuda.empty_cache()
        return None


def in_parts(batch: StepBatch, compute: Compute, limit: TokenLimit) -> StepOutput:
    """The result of `compute(batch)`. If it fails, each half is computed, down to slices, whose output is then a fault.

    For want of memory, a slice is halved down to single tokens. `compute` may be called again for a part that it has
    begun. Raises the last error if every slice fails: then no slice is to blame.
    """
    errors: list[Exception] = []
    outputs = tuple(_parts(batch, compute, limit, errors))
    if len(errors) == len(batch.slices):
        raise errors[-1]
    return StepOutput(outputs)


def _parts(batch: StepBatch, compute: Compute, limit: TokenLimit, errors: list[Exception]) -> Iterator[SliceOutput]:
    """The outputs of the slices. Adds the error of each slice that fails, without the frames, which hold tensors."""
    if len(batch.slices) == 1:
        try:
            yield _slice(batch.slices[0], compute, limit)
        except Exception as error:
            log.exception("sequence %d ends: its part of a step fails", batch.slices[0].sequence_id)
            errors.append(error.with_traceback(None))
            yield SliceOutput(fault=f"the engine could not compute this request ({type(error).__name__})")
    elif (output := limit.attempt(lambda: compute(batch), batch)) is not None:
        yield from output.slices
    else:
        cut = _middle([item.stop - item.start for item in batch.slices])
        for half in (batch.slices[:cut], batch.slices[cut:]):
            yield from _parts(StepBatch(half), compute, limit, errors)


def _slice(item: Slice, compute: Compute, limit: TokenLimit) -> SliceOutput:
    """The output of one slice, in two parts if it does not fit into memory. Raises the error of a part that fails."""
    batch = StepBatch((item,))
    output = limit.attempt(lambda: compute(batch), batch)
    return _in_two(item, compute, limit) if output is None else output.slices[0]


def _middle(lengths: list[int]) -> int:
    """The number of slices that have half of the tokens; at least one slice is left."""
    sums = list(accumulate(lengths))
    return next(n for n, tokens in enumerate(sums, 1) if 2 * tokens >= sums[-1] or n == len(sums) - 1)


def _in_two(item: Slice, compute: Compute, limit: TokenLimit) -> SliceOutput:
    first, second = _split(item)
    before = _slice(first, compute, limit)
    accepted = before.tokens == tuple(item.tokens[len(first.tokens) - first.n_draft : second.start + 1])
    if before.ends or (before.tokens and not accepted):
        return before
    after = _slice(second, compute, limit)
    return after if after.ends else _join(before, after)


def _split(item: Slice) -> tuple[Slice, Slice]:
    """Two slices that together compute `item`. The first samples only after draft tokens and the token before them.

    Worked example: tokens 0..9 are known, 10..13 are draft tokens, the slice is 8..13. The first part is 8..10 and
    samples after 9 and after 10. If it accepts 10 and then samples 11, the second part is 11..13.
    """
    middle = (item.start + item.stop) // 2
    known = len(item.tokens) - item.n_draft
    if middle < known:
        return item._replace(stop=middle, n_draft=0), item._replace(start=middle)
    first = item._replace(tokens=item.tokens[:middle], stop=middle, n_draft=middle - known)
    return first, item._replace(start=middle, n_draft=item.stop - middle - 1)


def _join(before: SliceOutput, after: SliceOutput) -> SliceOutput:
    both = before.pooled and after.pooled
    return SliceOutput(
        tokens=before.tokens + after.tokens,
        logprobs=before.logprobs + after.logprobs,
        prompt_logprobs=before.prompt_logprobs + after.prompt_logprobs,
        pooled=tuple(map(add, before.pooled, after.pooled)) if both else before.pooled or after.pooled,
    )
