"""One token from each row of logits: the greatest, or one sampled from the distribution that `Stage.DISTRIBUTION` left.

Kernels sample all rows: compiled ones on a CPU, those of Triton on a GPU. Elsewhere PyTorch does. No GPU is waited for.
"""

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.kernels import cuda as triton
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.sampling_params import DRAWING, LEAST_TEMPERATURE, SamplingParams
from model.step.logits import HIDDEN, column, indices, rows_of
from model.step.noise import noise, noise_keys

SamplingKernels = Kernels | ModuleType
"""The compiled kernels of a CPU, or `model.kernels.cuda.sampling`."""
IMPLEMENTED = frozenset({"temperature", "seed", "min_p", "top_k", "top_p"})
"""The parameters that `choose` implements in PyTorch."""
BY_KERNELS = IMPLEMENTED & {"seed", *(name for name, _ in DRAWING)}
"""The parameters that it implements where kernels sample: `kernel_rows` passes them, the seed as start and step."""


def on_gpu(device: torch.device, n_tokens: int) -> ModuleType | None:
    """Return the kernels that sample from `n_tokens` tokens on a GPU, in memory of a fixed size, or None."""
    if not triton.serve_on(device):
        return None
    from model.kernels.cuda import sampling

    return sampling if n_tokens <= sampling.MOST_TOKENS else None


def choose(logits: Tensor, slices: Sequence[Slice], kernels: SamplingKernels | None) -> Tensor:
    """Choose tokens [N], or NO_TOKEN or NOT_FINITE, from logits [N, vocab_size], which are overwritten.

    Without `kernels` PyTorch does it.
    """
    if kernels is not None:
        return kernels.sample(logits, kernel_rows(slices, kernels.row_type()))
    greatest, tokens = logits.max(dim=-1)  # the first of equals
    if sampled := [row for row, item in enumerate(slices) if item.params.temperature > 0]:
        raced = _race(rows_of(logits, sampled), [slices[row] for row in sampled])
        tokens.index_copy_(0, indices(sampled, logits.device), raced)
    return tokens.masked_fill_(~greatest.isfinite(), NOT_FINITE).masked_fill_(greatest == HIDDEN, NO_TOKEN)


def _race(logits: Tensor, slices: Sequence[Slice]) -> Tensor:
    """Sample tokens [n] by the Gumbel-max trick: the token whose exponential clock rings first.

    The rate of a token's clock is its probability. A rounding error in the logits changes the result only where two
    clocks ring almost at the same time. A walk along cumulated probabilities would pass every error on to all tokens
    after it.
    """
    params = [item.params for item in slices]
    # Shift to a maximum of 0, then divide: no temperature overflows.
    temperatures = column([max(each.temperature, LEAST_TEMPERATURE) for each in params], logits.device)
    logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(temperatures)
    logits.masked_fill_(logits < column([each.min_p for each in params], logits.device).log_(), HIDDEN)
    if any(each.top_k > 0 or each.top_p < 1 for each in params):
        _cut(logits, params)
    waits = noise(_keys_of(slices), logits.shape[1], logits.device).log_().neg_()
    return logits.exp_().div_(waits).argmax(dim=-1)


def _keys_of(slices: Sequence[Slice]) -> NDArray[np.uint64]:
    return noise_keys(
        [item.params.seed for item in slices],
        [item.choice for item in slices],
        [item.stop - item.n_prompt for item in slices],
    )


def kernel_rows(slices: Sequence[Slice], row_type: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the rows' parameters for kernels. Temperature 0 is greedy."""
    rows = np.zeros(len(slices), dtype=row_type)
    drawing = np.frombuffer(b"".join([item.params.drawing for item in slices]), dtype=DRAWING)
    for name in drawing.dtype.names or ():
        rows[name] = drawing[name]
    rows["start"], steps = _keys_of(slices).view(np.int32).reshape(-1, 2).T
    rows["step"] = steps | 1
    return rows


def _cut(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Hide all but the `top_k` likeliest tokens, then all but the fewest whose probabilities reach `top_p`, ties by id.

    The weights of logits up to 0 are added as integers, in units of 2^-41 (`fixed` in sample.c): the sums have the same
    bits in any order, beside any other rows.
    """
    counts = column([p.top_k if p.top_k > 0 else math.inf for p in params], logits.device)
    shares = column([p.top_p if p.top_p < 1 else math.inf for p in params], logits.device, torch.float64)
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    ordered.masked_fill_(torch.arange(logits.shape[1], device=logits.device) >= counts, HIDDEN)
    sums = (ordered.exp().double() * 2.0**41).long().cumsum_(dim=-1)
    reached = sums[:, :-1] >= (shares * sums[:, -1:]).ceil_()
    ordered[:, 1:].masked_fill_(reached, HIDDEN)
    logits.scatter_(1, ids, ordered)
