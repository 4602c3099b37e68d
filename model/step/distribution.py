"""One token from each row of logits: the greatest, or one sampled from the distribution that `Stage.DISTRIBUTION` left.

On a CPU a compiled kernel samples all rows in one call. PyTorch does it elsewhere, and does not wait for a GPU.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.kernels.cpu import records
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.machine.transfers import upload
from model.step.logits import HIDDEN, SamplingStep, apply, column, indices, rows_of
from model.step.noise import noise, noise_keys

LEAST_TEMPERATURE = 1e-30
"""Below it, differences of float32 logits overflow. Sampling is greedy at much greater values already."""
LEAST_TOP_P = 1e-30
"""Below it, float32 may become 0. Only one token is left at much greater values already."""
RACED = frozenset({"temperature", "seed"})
"""Parameters of `_race` itself."""


def choose(logits: Tensor, slices: Sequence[Slice], kernels: Kernels | None, first: int = 0) -> Tensor:
    """Columns [N] of the chosen tokens, or NO_TOKEN or NOT_FINITE, from logits [N, n] of the n tokens from `first` on.

    The logits are overwritten. Afterwards the chosen token's value is its logit in a greedy row, and what `_race`
    compares in the others.
    """
    if kernels is None:
        return _choose(logits, slices, first)
    return kernels.sample(logits, kernel_rows(slices, first))


def _choose(logits: Tensor, slices: Sequence[Slice], first: int) -> Tensor:
    """`choose` in PyTorch: the greatest logit, the first of equals, or a sampled token."""
    tokens, greatest = logits.argmax(dim=-1), logits.amax(dim=-1)
    sampled = [row for row, item in enumerate(slices) if item.params.temperature > 0]
    if sampled:
        values, where = rows_of(logits, sampled), indices(sampled, logits.device)
        tokens.index_copy_(0, where, _race(values, [slices[row] for row in sampled], first))
        if values is not logits:
            logits.index_copy_(0, where, values)
    return tokens.masked_fill_(~greatest.isfinite(), NOT_FINITE).masked_fill_(greatest == HIDDEN, NO_TOKEN)


def _race(logits: Tensor, slices: Sequence[Slice], first: int) -> Tensor:
    """Tokens [n], sampled by the Gumbel-max trick: the token whose exponential clock rings first.

    The rate of a token's clock is its probability. A rounding error in the logits changes the result only where two
    clocks ring almost at the same time. A walk along cumulated probabilities would pass every error on to all tokens
    after it.
    """
    _temperature(logits, slices)
    apply(DISTRIBUTION_STEPS, logits, slices)
    waits = noise(_keys_of(slices), logits.shape[1], logits.device, first).log_().neg_()
    return logits.exp_().div_(waits).argmax(dim=-1)


def best(logits: Tensor, slices: Sequence[Slice], kernels: Kernels | None, first: int) -> Tensor:
    """Return [N, 3] float64 for the tokens from `first` on: an id or a code of `choose`, its value, the greatest logit.

    Logits [N, n] float32 are overwritten.
    """
    tops, columns = logits.amax(dim=-1), choose(logits, slices, kernels, first)
    values = logits.gather(1, columns.clamp(min=0)[:, None])[:, 0]
    return torch.stack((torch.where(columns < 0, columns, columns + first), values, tops), dim=1).double()


def best_of_all(found: Tensor, slices: Sequence[Slice]) -> Tensor:
    """Tokens [N], or NO_TOKEN or NOT_FINITE, from `best` of consecutive parts of the vocabulary, [N, 3 parts].

    Values of a race are relative to the top of their part. A greedy row has no temperature, and its values are logits.
    """
    ids, values, tops = found.unflatten(1, (-1, 3)).unbind(dim=-1)  # [N, parts] each
    temperatures = [max(item.params.temperature, LEAST_TEMPERATURE) for item in slices]
    sampled = column([float(item.params.temperature > 0) for item in slices], found.device, torch.float64)
    below = (tops - tops.amax(dim=1, keepdim=True)) / column(temperatures, found.device, torch.float64)
    values = torch.where(sampled > 0, values * below.exp(), values).masked_fill_(ids < 0, HIDDEN)
    tokens = ids.gather(1, values.argmax(dim=1, keepdim=True))[:, 0].long()
    return tokens.masked_fill_((ids == NOT_FINITE).any(dim=1), NOT_FINITE)


def _keys_of(slices: Sequence[Slice]) -> NDArray[np.uint64]:
    return noise_keys(
        [item.params.seed for item in slices],
        [item.choice for item in slices],
        [item.stop - item.n_prompt for item in slices],
    )


def kernel_rows(slices: Sequence[Slice], first: int = 0) -> NDArray[np.void]:
    """The parameters of each row for kernels/cpu/sample.c; temperature 0 is greedy. The first token is `first`."""
    rows = np.zeros(len(slices), dtype=records.sampling())
    sampled = [row for row, item in enumerate(slices) if item.params.temperature > 0]
    if sampled:
        chosen = [slices[row] for row in sampled]
        keys = _keys_of(chosen).view(np.int32).reshape(-1, 2) | np.array([0, 1], dtype=np.int32)
        keys[:, 0] += keys[:, 1] * np.int32(first)  # wraps at 2^32
        params = [item.params for item in chosen]
        rows[["temperature", "min_p", "top_p", "top_k", "start", "step"]][sampled] = [
            (max(p.temperature, LEAST_TEMPERATURE), p.min_p, max(p.top_p, LEAST_TOP_P), max(p.top_k, 0), start, step)
            for p, (start, step) in zip(params, keys.tolist(), strict=True)
        ]
    return rows


def _temperature(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Shift to a maximum of 0, then divide: no temperature overflows."""
    temperatures = column([max(item.params.temperature, LEAST_TEMPERATURE) for item in slices], logits.device)
    logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(temperatures)


def _min_p(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Hide tokens that are less than `min_p` times as likely as the likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + column([item.params.min_p for item in slices], logits.device).log()
    logits.masked_fill_(logits < least, HIDDEN)


def _top_k(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Hide all but the k likeliest tokens, ties by id."""
    counts = [min(item.params.top_k, logits.shape[1]) for item in slices]
    (ranks,) = upload([np.array(counts)], logits.device)
    best = logits.topk(max(counts), dim=-1).values
    _keep(logits, best.gather(1, ranks[:, None] - 1), ranks[:, None])


def _top_p(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Hide all but the smallest set of likeliest tokens whose probabilities reach `top_p`, ties by id.

    Weights are added as integers: the sums have the same bits in any order, beside any other rows.
    """
    share = column([item.params.top_p for item in slices], logits.device, torch.float64)
    wanted = (share * _units(logits).sum(dim=-1, keepdim=True)).ceil_()  # [n, 1]
    ordered = logits.sort(dim=-1, descending=True).values
    reached = _units(ordered).cumsum(dim=-1) >= wanted
    reached[:, -1] = True
    last = reached.int().argmax(dim=-1, keepdim=True)
    _keep(logits, ordered.gather(1, last), last + 1)


def _units(logits: Tensor) -> Tensor:
    """The weights of logits up to 0, which are 0 to 1, as int64 in units of 2^-41; see `fixed` in sample.c."""
    return (logits.exp().double() * 2.0**41).long()


def _keep(logits: Tensor, cut: Tensor, counts: Tensor) -> None:
    """Hide all but the `counts` [n, 1] greatest logits of each row. The least of them is cut [n, 1]; ties by id."""
    equal = logits == cut
    places = counts - (logits > cut).sum(dim=-1, keepdim=True)
    logits.masked_fill_((logits < cut) | (equal & (equal.cumsum(dim=-1) > places)), HIDDEN)


DISTRIBUTION_STEPS = (
    SamplingStep(frozenset({"min_p"}), _min_p),
    SamplingStep(frozenset({"top_k"}), _top_k),
    SamplingStep(frozenset({"top_p"}), _top_p),
)
"""Sampling steps of the distribution, in this order, after the temperature."""
