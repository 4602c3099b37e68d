"""Sampling steps: each changes the logits of the rows that use its parameters. Here are those of `Stage.LOGITS`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.machine.transfers import send, upload
from model.token_counts import TokenCounts

HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """Changes, in place, the rows of logits [n, vocab_size] whose requests use one of its parameters."""

    parameters: frozenset[str]
    change: Callable[[Tensor, Sequence[Slice]], None]


def apply(steps: Sequence[SamplingStep], logits: Tensor, slices: Sequence[Slice]) -> None:
    """Take the steps in order. A step changes only the rows that use its parameters."""
    used = frozenset().union(*(item.params.used for item in slices))
    for step in steps:
        if used.isdisjoint(step.parameters):
            continue
        rows = [row for row, item in enumerate(slices) if not step.parameters.isdisjoint(item.params.used)]
        if len(rows) == len(slices):
            step.change(logits, slices)
        else:
            where = indices(rows, logits.device)
            part = logits.index_select(0, where)
            step.change(part, [slices[row] for row in rows])
            logits.index_copy_(0, where, part)


def rows_of(values: Tensor, rows: Sequence[int]) -> Tensor:
    """Return these rows of `values`; `values` itself if they are all of its rows."""
    return values if len(rows) == len(values) else values.index_select(0, indices(rows, values.device))


def indices(values: Sequence[int], device: torch.device) -> Tensor:
    """Return the values as int64 [n] on `device`."""
    return upload([np.array(values, dtype=np.int64)], device)[0]


def _coordinates(ids: Sequence[NDArray[np.int64]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row numbers and column ids of ids[row] for every row, flat."""
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    first, second = upload([rows, np.concatenate(ids)], device)
    return first, second


def column(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return one float a row: [n, 1]."""
    return send(torch.tensor(values, dtype=dtype), device)[:, None]


def _allowed(logits: Tensor, slices: Sequence[Slice]) -> None:
    ids = [np.array(item.params.allowed_token_ids, dtype=np.int64) for item in slices]
    where = _coordinates(ids, logits.device)
    allowed = logits[where]
    logits.fill_(HIDDEN)
    logits[where] = allowed


def _bad_words(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Hide the last token of a bad word if its other tokens end the output."""
    ids = [np.array(list(_completing(item)), dtype=np.int64) for item in slices]
    # Not `logits[...] = HIDDEN`: a number is copied to a GPU, and the host waits for it.
    logits.index_put_(_coordinates(ids, logits.device), logits.new_full((), HIDDEN))


def _completing(item: Slice) -> Iterator[int]:
    for *before, last in item.params.bad_words:
        first = item.stop - len(before)
        if first >= item.n_prompt and list(item.tokens[first : item.stop]) == before:
            yield last


def _min_tokens(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Hide end tokens while the output has fewer than `min_tokens` tokens."""
    early = [item.stop - item.n_prompt < item.params.min_tokens for item in slices]
    ends = [item.params.stop_token_ids if is_early else () for item, is_early in zip(slices, early, strict=True)]
    where = _coordinates([np.array(ids, dtype=np.int64) for ids in ends], logits.device)
    logits.index_put_(where, logits.new_full((), HIDDEN))


def _logit_bias(logits: Tensor, slices: Sequence[Slice]) -> None:
    biases = [dict(item.params.logit_bias) for item in slices]
    rows, ids = _coordinates([np.array([*bias], dtype=np.int64) for bias in biases], logits.device)
    values = column([value for bias in biases for value in bias.values()], logits.device)
    logits[rows, ids] += values[:, 0]


def counted(item: Slice) -> TokenCounts:
    """Count the tokens before the one to sample. Draft tokens are counted in a copy: they may be rejected."""
    counts = item.counts or TokenCounts()
    counts.grow(item.tokens, item.n_prompt, item.stop - item.n_draft)
    if item.n_draft:
        counts = counts.copy()
        counts.grow(item.tokens, item.n_prompt, item.stop)
    return counts


def _penalties(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Divide positive logits, multiply negative ones for tokens of prompt and output (arXiv 1909.05858).

    For tokens of the output: subtract the presence penalty once, the frequency penalty for each occurrence.
    """
    found = [counted(item) for item in slices]
    rows, ids = _coordinates([np.array(counts.ids) for counts in found], logits.device)
    (outputs,) = upload([np.concatenate([np.array(counts.outputs) for counts in found])], logits.device)
    repetition, presence, frequency = (
        column([getattr(item.params, name) for item in slices], logits.device)[rows, 0] for name in PENALTIES
    )
    values = logits[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[rows, ids] = torch.where(outputs > 0, values - (presence + frequency * outputs), values)


PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
LOGITS_STEPS = (
    SamplingStep(frozenset({"allowed_token_ids"}), _allowed),
    SamplingStep(frozenset({"bad_words"}), _bad_words),
    SamplingStep(frozenset({"min_tokens"}), _min_tokens),
    SamplingStep(frozenset({"logit_bias"}), _logit_bias),
    SamplingStep(frozenset(PENALTIES), _penalties),
)
"""Sampling steps on the logits, in this order. The step of grammars follows (`masks.Masks.step`)."""
