"""Draft tokens by a narrower copy of the weights, over the pages of the model that it drafts for.

The scheduler leaves places for draft tokens, UNKNOWN, at the end of slices that decode. Here each pass computes one row
of each such sequence with the narrow weights, and samples by the same noise as the model: both choose the same token
wherever their distributions lead to it. A pass writes keys and values of narrow weights to the pages. The step that
verifies the draft tokens computes these positions again, in each layer before any row reads them.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import torch

from model.batch import Slice, StepBatch
from model.sampling_params import SamplingParams
from model.step.ahead import LastTokens
from model.step.executors import Executor

CPU = torch.device("cpu")
UNMODELED = frozenset({"logprobs", "grammar"})
"""Parameters that a pass leaves out: it reports nothing, and a draft token that a grammar forbids is rejected."""


class Drafter:
    """The passes of an `executor` with narrow weights over the pages of the model."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._nothing = LastTokens.of((), (), CPU)

    def fill(self, batch: StepBatch) -> tuple[StepBatch, int, float]:
        """Compute the draft tokens for which `batch` leaves places. Returns it with them, the passes, and the seconds.

        A pass without memory ends them: the tokens that it would have found are 0, and only verification is lost.
        """
        began = time.monotonic()
        tokens = {row: _tokens(item) for row, item in enumerate(batch.slices) if item.awaits_draft}
        if not tokens:
            return batch, 0, 0.0
        depth = max(batch.slices[row].n_draft for row in tokens)
        with suppress(MemoryError):
            for n in range(depth):
                self._pass(batch, tokens, n)
        slices = [*batch.slices]
        for row, drafted in tokens.items():
            slices[row] = slices[row]._replace(tokens=drafted)
        return replace(batch, slices=tuple(slices)), depth, time.monotonic() - began

    def _pass(self, batch: StepBatch, tokens: Mapping[int, list[int]], n: int) -> None:
        """Find the `n`-th draft token of each sequence that has so many."""
        rows = [row for row in tokens if batch.slices[row].n_draft > n]
        items = [_row(batch.slices[row], tokens[row], n) for row in rows]
        views = [(item,) for item in items]
        _, sampled = self._executor.start(StepBatch(tuple(items)), views, self._nothing)
        found = chain.from_iterable(some.tokens.tolist() for some in sampled)
        for row, item, token in zip(rows, items, found, strict=True):
            tokens[row][item.stop] = max(token, 0)  # below 0 there was none to sample


def _tokens(item: Slice) -> list[int]:
    """Return the known tokens, and 0 for each draft token."""
    return [*item.tokens[: item.stop - item.n_draft], *[0] * item.n_draft]


def _row(item: Slice, tokens: list[int], n: int) -> Slice:
    """Return the slice of one row that samples the `n`-th draft token."""
    stop = item.stop - item.n_draft + n
    return item._replace(tokens=tokens, start=stop - 1, stop=stop, n_draft=n, media=(), params=_plain(item.params))


def _plain(params: SamplingParams) -> SamplingParams:
    if UNMODELED.isdisjoint(params.used):
        return params
    return replace(params, logprobs=None, grammar=None)
