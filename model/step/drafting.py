"""Draft tokens by a narrower copy of the weights, over the pages of the model that it drafts for, or by a draft model.

The scheduler leaves places for draft tokens, UNKNOWN, at the end of slices that decode. Here each pass computes one row
of each such sequence, and samples by the same noise as the model: both choose the same token wherever their
distributions lead to it. A narrow copy writes its keys and values to the pages of the model. The step that verifies the
draft tokens computes these positions again, in each layer before any row reads them.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch

from model.attention.cache import PagePools
from model.batch import PageCopy, Slice, StepBatch
from model.sampling_params import SamplingParams
from model.step.ahead import LastTokens
from model.step.executors import Executor

CPU = torch.device("cpu")
MOST_BEHIND = 256
"""Tokens that the first pass of a draft model computes at most. Further back it has nothing, and guesses worse."""
UNMODELED = frozenset({"logprobs", "grammar"})
"""Parameters that a pass leaves out: it reports nothing, and a draft token that a grammar forbids is rejected."""


class DraftCache(NamedTuple):
    """Keys and values of a draft model, in pages with the numbers of those in the `shared` pool of the model."""

    pools: PagePools
    shared: int

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages as the model's are copied."""
        here = [copy for copy in copies if copy.pool == self.shared]
        self.pools.copy_pages(copy._replace(pool=pool) for pool in set(self.pools.pool_of_layer) for copy in here)


class Drafter:
    """The passes of an `executor` with narrow weights over the pages of the model, or of a draft model over its own.

    A draft model computes the chunks of prompts too. What it has not seen since, it computes in its first pass.
    """

    def __init__(self, executor: Executor, cache: DraftCache | None = None) -> None:
        self.cache = cache
        self._executor = executor
        self._nothing = LastTokens.of((), (), CPU)
        self._computed: dict[int, int] = {}  # by the draft model, of each sequence

    def fill(self, batch: StepBatch) -> tuple[StepBatch, int, float]:
        """Compute the draft tokens for which `batch` leaves places. Returns it with them, the passes, and the seconds.

        A pass without memory ends them: the tokens that it would have found are 0, and only verification is lost.
        """
        if self.cache is not None:
            self._follow(batch)
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

    def _follow(self, batch: StepBatch) -> None:
        """Compute the chunks of prompts, and note how far each sequence of the batch is computed."""
        before = self._computed
        self._computed = {item.sequence_id: before.get(item.sequence_id, item.start) for item in batch.slices}
        chunks = [item for item in batch.slices if item.stop - item.n_draft - item.start > 1]
        if chunks:
            rows = [self._own(item._replace(stop=item.stop - item.n_draft, n_draft=0)) for item in chunks]
            with suppress(MemoryError):
                self._executor.start(StepBatch(tuple(rows)), [()] * len(rows), self._nothing)
            self._computed |= {item.sequence_id: item.stop for item in rows}

    def _pass(self, batch: StepBatch, tokens: Mapping[int, list[int]], n: int) -> None:
        """Find the `n`-th draft token of each sequence that has so many."""
        rows = [row for row in tokens if batch.slices[row].n_draft > n]
        items = [self._row(batch.slices[row], tokens[row], n) for row in rows]
        views = [(item,) for item in items]
        _, sampled = self._executor.start(StepBatch(tuple(items)), views, self._nothing)
        found = chain.from_iterable(some.tokens.tolist() for some in sampled)
        for row, item, token in zip(rows, items, found, strict=True):
            tokens[row][item.stop] = max(token, 0)  # below 0 there was none to sample

    def _row(self, item: Slice, tokens: list[int], n: int) -> Slice:
        """Return the slice that samples the `n`-th draft token: one row, before the first those that are missing."""
        stop, number = item.stop - item.n_draft + n, item.sequence_id
        row = item._replace(tokens=tokens, start=stop - 1, stop=stop, n_draft=n, media=(), params=_plain(item.params))
        if self.cache is None:
            return row
        start = max(min(self._computed[number], stop - 1), stop - MOST_BEHIND)
        self._computed[number] = stop
        return self._own(row._replace(start=start))

    def _own(self, item: Slice) -> Slice:
        """Return a slice over the pages of the draft model, which has no adapters and sees no images."""
        assert self.cache is not None
        n_pools = len(set(self.cache.pools.pool_of_layer))
        return item._replace(tables=(item.tables[self.cache.shared],) * n_pools, adapter=0, media=())


def _tokens(item: Slice) -> list[int]:
    """Return the known tokens, and 0 for each draft token."""
    return [*item.tokens[: item.stop - item.n_draft], *[0] * item.n_draft]


def _plain(params: SamplingParams) -> SamplingParams:
    if UNMODELED.isdisjoint(params.used):
        return params
    return replace(params, logprobs=None, grammar=None)
