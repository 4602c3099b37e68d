"""A step that failed: it is planned again with fewer tokens, or its slices are computed apart.

A step that does not fit into memory is the scheduler's to plan again, unless it has no more tokens than sequences may
run. A slice that fails alone ends alone: slices depend on each other only by keys and values that an earlier one has
written, and their order stays. A step may be computed again: the same keys and values are written to the same places.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from math import inf
from typing import TypeVar

import torch

from model.batch import DeviceLost, SliceOutput, StepBatch, StepOutput, StepTooLarge
from model.errors import one_line
from model.machine.device import lost, of_memory

log = logging.getLogger(__name__)

T = TypeVar("T")
Compute = Callable[[StepBatch], StepOutput]


def attempt(compute: Callable[[], T], batch: StepBatch, most: float = inf) -> T | None:
    """Return the result of `compute` for the batch, or None if it failed and its slices may succeed apart.

    Raises StepTooLarge if memory ran out for more than `most` tokens, and DeviceLost. When this function ends, the
    error is released, and with it its frames, which hold tensors.
    """
    try:
        return compute()
    except Exception as error:
        _check_device(error)
        out_of_memory = of_memory(error)
        if len(batch.slices) == 1 and not out_of_memory:
            raise
        log.warning("a step of %d tokens, %d sequences failed: %s", batch.n_tokens, len(batch.slices), repr(error))
    if out_of_memory:
        torch.cuda.empty_cache()
        if batch.n_tokens > most:
            raise StepTooLarge
    return None


def _check_device(error: Exception) -> None:
    """Raise DeviceLost if the device has been lost, as the error then tells."""
    if lost():
        raise DeviceLost(f"the GPU computes nothing more for this process: {one_line(error)}") from error


def apart(batch: StepBatch, compute: Compute) -> StepOutput:
    """Compute a step that failed in halves, down to slices. A slice that fails has a fault.

    `compute` may be called again for a part that it has begun. Raises the last error if every slice fails: then none of
    them is to blame. Raises DeviceLost.
    """
    errors: list[Exception] = []
    outputs = tuple(_halves(batch, compute, errors))
    if len(errors) == len(batch.slices):
        raise errors[-1]
    return StepOutput(outputs)


def _halves(batch: StepBatch, compute: Compute, errors: list[Exception]) -> Iterator[SliceOutput]:
    if len(batch.slices) == 1:
        yield _alone(batch, compute, errors)
        return
    cut = _middle([item.stop - item.start for item in batch.slices])
    for half in (StepBatch(batch.slices[:cut]), StepBatch(batch.slices[cut:])):
        output = attempt(partial(compute, half), half) if len(half.slices) > 1 else None
        yield from _halves(half, compute, errors) if output is None else output.slices


def _alone(batch: StepBatch, compute: Compute, errors: list[Exception]) -> SliceOutput:
    """Return the output of a slice. Add its error if it fails, without the frames, which hold tensors."""
    try:
        return compute(batch).slices[0]
    except Exception as error:
        _check_device(error)
        log.exception("sequence %d ends: its part of a step fails", batch.slices[0].sequence_id)
        errors.append(error.with_traceback(None))
    return SliceOutput(fault=f"the engine could not compute this request ({type(errors[-1]).__name__})")


def _middle(lengths: list[int]) -> int:
    """Return the number of slices that have half of the tokens; at least one slice is left."""
    sums = list(accumulate(lengths))
    return next(n for n, tokens in enumerate(sums, 1) if 2 * tokens >= sums[-1] or n == len(sums) - 1)
