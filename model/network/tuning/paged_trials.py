"""What is timed to choose how the compiled attention reads its pages: calls over pages in memory, none in a cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch import Tensor

from model.attention.inputs import PoolInputs, Span
from model.attention.paged import Choice, PagedAttention, Prepared, cells_at, point_to
from model.kernels.cpu import native
from model.kernels.cpu.records import PAGE_SIZE
from model.kernels.cpu.tuning.contest import GAIN, Contest
from model.kernels.cpu.tuning.trials import DEFAULT, Timing
from model.linear.schemes import CACHE_FORMATS
from model.machine.device import free_bytes, name_of

CPU = torch.device("cpu")
CANDIDATES: Mapping[str, Mapping[str, int]] = {
    "ahead": {DEFAULT: Choice().ahead} | {str(n): n for n in (1, 2, 3, 4, 6, 8)},
    "rows": {DEFAULT: Choice().rows} | {str(n): n for n in (8, 4)},
}
"""By the field of `Choice`."""
GAINS: Mapping[str, float] = {"ahead": 0.1, "rows": GAIN}
"""The shares of the default's time that a winner saves. From memory, minima of one form differ by 8 %."""
BLOCKS, CHUNK_BLOCKS = 8, 16
"""Pages of each sequence of a timed step of one row each, and of the sequence of a timed chunk."""
STREAMS, CHUNK = 8, 64
"""Sequences of the former and rows of the latter, for each thread."""
MOST_BYTES = 3 * 2**24
"""All pages that are timed: more than a cache usually holds. A call reads a quarter at most."""
LEAST_BYTES = 2**20
"""Attention over fewer bytes for 16 sequences is over before a difference can be measured: the defaults serve."""


@dataclass(frozen=True, slots=True)
class PagedTrials:
    """The choice for layers of `heads` (heads, key heads, their width) whose cache has `dtype`."""

    attention: PagedAttention
    heads: tuple[int, int, int]
    dtype: torch.dtype
    threads: int

    @property
    def name(self) -> str:
        """The name under which the choice is kept."""
        return f"attention {name_of(self.dtype)} {'x'.join(map(str, self.heads))}"

    @property
    def is_worth_it(self) -> bool:
        """Whether a difference can be measured."""
        return 16 * BLOCKS * self._page_bytes >= LEAST_BYTES

    def knows(self, names: Mapping[str, str]) -> bool:
        """Whether all choices are there, and known."""
        return names.keys() == CANDIDATES.keys() and all(names[field] in CANDIDATES[field] for field in names)

    def set(self, names: Mapping[str, str]) -> None:
        """Use these choices from now on; the default for one that is missing."""
        self.attention.choice = Choice(**{field: CANDIDATES[field][name] for field, name in names.items()})

    def timings(self) -> dict[str, Timing]:
        """The contest of each choice; none if the pages would take more than a quarter of the free memory."""
        n_streams = max(1, min(STREAMS * self.threads, MOST_BYTES // 4 // (BLOCKS * self._page_bytes)))
        parts = self._pages(max(n_streams * BLOCKS, CHUNK_BLOCKS))
        steps = {"ahead": _streams(n_streams), "rows": _chunk(min(CHUNK * self.threads, CHUNK_BLOCKS * PAGE_SIZE))}
        return {field: self._timing(field, inputs, parts) for field, inputs in steps.items()} if parts else {}

    def _pages(self, n: int) -> list[Tensor]:
        """Memory of n pages for each call until it is read again."""
        n_parts = max(1, MOST_BYTES // (n * self._page_bytes))
        if free_bytes(CPU) < 4 * n_parts * n * self._page_bytes:
            return []
        cells = self.attention.allocate((n_parts * n, *self.heads[1:]), self.dtype, CPU)
        for half in (cells.k, cells.v):
            half.fill_(60)  # a number in the normal range, also where four of such bytes are a float
        return list(cells.k.split(n))

    @property
    def _page_bytes(self) -> int:
        _, n_kv_heads, head_dim = self.heads
        return 2 * PAGE_SIZE * n_kv_heads * CACHE_FORMATS[name_of(self.dtype)].head_bytes(head_dim)

    def _timing(self, field: str, inputs: PoolInputs, parts: Sequence[Tensor]) -> Timing:
        """A contest of the candidates of a field over `parts` of the pages in turns."""
        n_heads, n_kv_heads, head_dim = self.heads
        names = list(CANDIDATES[field])
        shape = len(inputs.slots), n_heads + 2 * n_kv_heads, head_dim
        qkv = torch.linspace(-1, 1, shape[0] * shape[1] * head_dim, dtype=torch.float32, device=CPU)
        out = torch.empty(shape[0] * n_heads * head_dim, dtype=torch.float32, device=CPU)
        prepared = [Prepared(inputs) for _ in names]
        calls = [
            self._with(field, name).call(each, shape, n_heads, self.dtype)
            for name, each in zip(names, prepared, strict=True)
        ]
        for call in calls:
            point_to(call, qkv, out, None)
        turns, kernels = cycle(parts), native.kernels()
        assert kernels is not None

        def run(candidate: int, owners: object = (qkv, out, prepared)) -> None:
            calls[candidate].cells = cells_at(next(turns))
            kernels.attention(calls[candidate])

        return Timing(Contest(len(names), run, GAINS[field]), names)

    def _with(self, field: str, name: str) -> PagedAttention:
        attention = PagedAttention()
        attention.choice = replace(Choice(), **{field: CANDIDATES[field][name]})
        return attention


def _streams(n: int) -> PoolInputs:
    """A row of each of n sequences, after all other positions of BLOCKS pages."""
    last = BLOCKS * PAGE_SIZE - 1
    spans = [Span(i, 1, last, 0, i * BLOCKS, BLOCKS, 0, None) for i in range(n)]
    return _inputs(spans, torch.arange(1, n + 1) * BLOCKS * PAGE_SIZE - 1, n * BLOCKS)


def _chunk(n: int) -> PoolInputs:
    """The last n rows of a sequence of CHUNK_BLOCKS pages."""
    stop = CHUNK_BLOCKS * PAGE_SIZE
    return _inputs([Span(0, n, stop - n, 0, 0, CHUNK_BLOCKS, 0, None)], torch.arange(stop - n, stop), CHUNK_BLOCKS)


def _inputs(spans: Sequence[Span], slots: Tensor, n_pages: int) -> PoolInputs:
    return PoolInputs(None, PAGE_SIZE, slots, torch.arange(n_pages), torch.empty(0, dtype=torch.int64), spans)
