"""CUDA graphs of steps that only decode: one a bucket of slices, all over the same memory.

A graph repeats the same kernels on the same addresses. So its inputs lie in memory of their own, filled before each
replay; rows beyond the step's own are marked as nothing to do (slot -1, no queries); and grids are those of the
longest sequences, in which programs without work end at once. All leave their logits in one place: what each keeps for
itself no other could use.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from model.attention.inputs import TABLE_WIDTH, PackedInputs, PoolInputs, Span
from model.batch import PoolSpec, RunnerInfo, max_pages
from model.machine.transfers import staged

log = logging.getLogger(__name__)

Compute = Callable[[PackedInputs, Tensor], Tensor]
"""Packed inputs, and the tokens [M] that the step before drew, to logits [N, vocab_size]; waits for nothing."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], Replay]
"""Record what a function queues on the device, to repeat it. What it returns is memory that stays where it is."""


def buckets(most: int) -> list[int]:
    """Numbers of slices that have a graph: steps of at most a quarter. Worked example: 20 -> 1, 2, 4, 8, 12, 16, 20."""
    sizes = [1, 2, 4]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(4, 2 ** (sizes[-1].bit_length() - 3)))
    return [*(size for size in sizes if size < most), most]


class CudaCapture:
    """`Capture` for CUDA. All graphs share one pool of memory, since only one runs at a time, and one stream: for each
    that it meets cuBLAS keeps a workspace."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            compute()  # compiles and sets up what may not happen during the recording
        current.wait_stream(self._side)
        with torch.cuda.stream(current), torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            compute()  # where this fails, `graph` may leave its stream the current one
        return graph.replay


class StaticInputs:
    """The inputs of a step of up to `n` slices, of one token each, in memory that stays where it is."""

    def __init__(self, info: RunnerInfo, n: int, device: torch.device) -> None:
        self._info = info
        self.drawn = torch.zeros(n, dtype=torch.int64, device=device)
        self._rows = torch.arange(n, device=device)
        sizes = [n, n] + [size for _ in info.pools for size in (n, TABLE_WIDTH * n)]
        self._columns = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._tokens, self._positions, *placed = self._columns.split(sizes)
        self._slots, self._tables = placed[::2], [table.view(n, TABLE_WIDTH) for table in placed[1::2]]
        self._pages = [torch.zeros(n * _max_pages(info, pool), dtype=torch.int64, device=device) for pool in info.pools]

    def first(self, n: int) -> PackedInputs:
        """Of n slices, for the longest sequences there may be."""
        return PackedInputs(
            tokens=self._tokens[:n],
            positions=self._positions[:n],
            pools=tuple(
                PoolInputs(
                    window=pool.window,
                    page_size=self._info.page_size,
                    slots=self._slots[i][:n],
                    pages=self._pages[i][: n * _max_pages(self._info, pool)],
                    table=self._tables[i][:n],
                    spans=tuple(_longest(self._info, pool, row) for row in range(n)),
                )
                for i, pool in enumerate(self._info.pools)
            ),
            sample_rows=self._rows[:n],
            score_rows=(),
        )

    def clear(self) -> None:
        """Nothing to do in any row."""
        self._columns.zero_()
        for slots in self._slots:
            slots.fill_(-1)

    def fill(self, packed: PackedInputs, drawn: Tensor) -> None:
        """With a step packed on the host; `drawn` [M] are the tokens that its UNKNOWN ones refer to."""
        columns = torch.zeros(self._columns.shape, dtype=torch.int64)
        n, most = len(packed.tokens), len(self.drawn)
        tokens, positions, *placed = columns.split([most, most, *[most, TABLE_WIDTH * most] * len(packed.pools)])
        tokens[:n], positions[:n] = packed.tokens, packed.positions
        for pool, slots, table, pages in zip(packed.pools, placed[::2], placed[1::2], self._pages, strict=True):
            slots[:n], slots[n:] = pool.slots, -1
            table.view(most, TABLE_WIDTH)[:n] = pool.table
            pages[: len(pool.pages)].copy_(staged(pool.pages, pages.device), non_blocking=True)
        self._columns.copy_(staged(columns, self._columns.device), non_blocking=True)
        n_drawn = min(len(drawn), most)
        self.drawn[:n_drawn].copy_(drawn[:n_drawn])


def _max_pages(info: RunnerInfo, pool: PoolSpec) -> int:
    return max_pages(pool.window, info.max_model_len, info.page_size, 1)


def _longest(info: RunnerInfo, pool: PoolSpec, row: int) -> Span:
    """The last token of the longest sequence."""
    start = info.max_model_len - 1
    first_key = 0 if pool.window is None else max(0, start - pool.window + 1)
    n_pages = start // info.page_size - first_key // info.page_size + 1
    return Span(row, 1, start, first_key, 0, n_pages, first_key % info.page_size, None)


class DecodeGraphs:
    """Steps of at most `most` slices of one token each."""

    def __init__(self, compute: Compute, info: RunnerInfo, most: int, device: torch.device, capture: Capture) -> None:
        self._compute = compute
        self._capture = capture
        self._inputs = StaticInputs(info, most, device)
        self._logits = torch.empty(most, info.vocab_size, device=device)
        self._sizes = buckets(most)
        self._graphs: dict[int, Replay] = {}

    def capture_next(self) -> bool:
        """Record one more graph; whether others are missing.

        The greatest comes first, since its memory has room for all others, then the smallest.
        """
        missing = [size for size in self._sizes if size not in self._graphs]
        if missing:
            self._record(missing[0 if self._graphs else -1])
        return len(missing) > 1

    def logits(self, packed: PackedInputs, drawn: Tensor) -> Tensor | None:
        """Logits [n, vocab_size] of a step packed on the host, which last until the next step; None without a graph."""
        n = len(packed.tokens)
        at = bisect_left(self._sizes, n)
        if at == len(self._sizes):
            return None
        replay = self._graphs.get(self._sizes[at]) or self._record(self._sizes[at])
        if replay is None:
            return None
        self._inputs.fill(packed, drawn)
        replay()
        return self._logits[:n]

    def _record(self, size: int) -> Replay | None:
        """None, now and for all greater sizes, if it fails, most likely for want of memory."""
        inputs, drawn, logits = self._inputs.first(size), self._inputs.drawn, self._logits[:size]
        self._inputs.clear()
        try:
            self._graphs[size] = self._capture(lambda: logits.copy_(self._compute(inputs, drawn)))
        except Exception as error:  # of PyTorch or of Triton: the step itself may still be computed
            log.warning("no graph of %d sequences, such steps are computed without: %s", size, error)
            self._sizes = [smaller for smaller in self._sizes if smaller < size]
            return None
        return self._graphs[size]
