"""Steps that only decode as CUDA graphs: one for each bucket of slices, all over the same memory.

A graph repeats the same kernels on the same addresses. Its inputs therefore have static memory, which is filled before
each replay. Rows beyond those of the step are padding (slot -1, no queries). Grids are those of the longest sequences;
programs without work end at once. All graphs write their logits to one place, because memory that belongs to one graph
cannot be used by the others.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from model.attention.inputs import TABLE_WIDTH, PackedInputs, PoolInputs, Span
from model.batch import PoolSpec, RunnerInfo, StepBatch, max_pages
from model.errors import one_line
from model.machine.transfers import staged
from model.step.ahead import LastTokens
from model.step.executors import Views
from model.step.executors.torch import TorchExecutor
from model.step.sampler import Sampled

log = logging.getLogger(__name__)

CPU = torch.device("cpu")

Compute = Callable[[PackedInputs, Tensor], Tensor]
"""Logits [N, vocab_size] from packed inputs and the tokens [M] that the step before sampled; waits for nothing."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], Replay]
"""Captures what a function queues on the device, to replay it. The function returns static memory."""


def buckets(greatest: int) -> list[int]:
    """Numbers of slices that have a graph. Each is at most a quarter, or 4, greater than the one before.

    Worked example: 20 -> 1, 2, 4, 8, 12, 16, 20.
    """
    sizes = [1, 2, 4]
    while sizes[-1] < greatest:
        sizes.append(sizes[-1] + max(4, 2 ** (sizes[-1].bit_length() - 3)))
    return [*(size for size in sizes if size < greatest), greatest]


class CudaCapture:
    """`Capture` for CUDA. All graphs share one pool of memory, because only one runs at a time. They share one stream,
    because cuBLAS allocates a workspace for each stream."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            compute()  # compiles kernels, which a capture must not do
        current.wait_stream(self._side)
        with torch.cuda.stream(current), torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            compute()  # if this fails, the stream of `graph` may stay the current one
        return graph.replay


class StaticInputs:
    """The inputs of a step of up to `n` slices, of one token each, in static memory."""

    def __init__(self, info: RunnerInfo, n: int, device: torch.device) -> None:
        self._info = info
        self.last_tokens = torch.zeros(n, dtype=torch.int64, device=device)
        self._rows = torch.arange(n, device=device)
        sizes = [n, n] + [size for _ in info.pools for size in (n, TABLE_WIDTH * n)]
        self._columns = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._tokens, self._positions, *placed = self._columns.split(sizes)
        self._slots, self._tables = placed[::2], [table.view(n, TABLE_WIDTH) for table in placed[1::2]]
        self._pages = [torch.zeros(n * _max_pages(info, pool), dtype=torch.int64, device=device) for pool in info.pools]

    def first(self, n: int) -> PackedInputs:
        """The inputs of n slices, for the longest sequences."""
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
                    numbers=np.array([_longest(self._info, pool, row) for row in range(n)]),
                )
                for i, pool in enumerate(self._info.pools)
            ),
            sample_rows=self._rows[:n],
        )

    def clear(self) -> None:
        """Make every row padding."""
        self._columns.zero_()
        for slots in self._slots:
            slots.fill_(-1)

    def fill(self, packed: PackedInputs, last_tokens: Tensor) -> None:
        """Copy a step that was packed on the host; its UNKNOWN tokens refer to `last_tokens` [M]."""
        columns = torch.zeros(self._columns.shape, dtype=torch.int64)
        n, size = len(packed.tokens), len(self.last_tokens)
        tokens, positions, *placed = columns.split([size, size, *[size, TABLE_WIDTH * size] * len(packed.pools)])
        tokens[:n], positions[:n] = packed.tokens, packed.positions
        for pool, slots, table, pages in zip(packed.pools, placed[::2], placed[1::2], self._pages, strict=True):
            slots[:n], slots[n:] = pool.slots, -1
            table.view(size, TABLE_WIDTH)[:n] = pool.table
            pages[: len(pool.pages)].copy_(staged(pool.pages, pages.device), non_blocking=True)
        self._columns.copy_(staged(columns, self._columns.device), non_blocking=True)
        n_last = min(len(last_tokens), size)
        self.last_tokens[:n_last].copy_(last_tokens[:n_last])


def _max_pages(info: RunnerInfo, pool: PoolSpec) -> int:
    return max_pages(pool.window, info.max_model_len, info.page_size, 1)


def _longest(info: RunnerInfo, pool: PoolSpec, row: int) -> Span:
    """The span of the last token of the longest sequence."""
    start = info.max_model_len - 1
    return Span(row, 1, start, 0 if pool.window is None else max(0, start - pool.window + 1), 0)


class DecodeGraphs:
    """The graphs of steps of at most `max_slices` slices, of one token each."""

    def __init__(
        self, compute: Compute, info: RunnerInfo, max_slices: int, device: torch.device, capture: Capture
    ) -> None:
        self._compute = compute
        self._capture = capture
        self._inputs = StaticInputs(info, max_slices, device)
        self._logits = torch.empty(max_slices, info.vocab_size, device=device)
        self._sizes = buckets(max_slices)
        self._graphs: dict[int, Replay] = {}

    @property
    def n_missing(self) -> int:
        """The number of graphs that are not captured yet."""
        return len(self._missing)

    @property
    def _missing(self) -> list[int]:
        return [size for size in self._sizes if size not in self._graphs]

    def capture_next(self) -> bool:
        """Capture one more graph; return whether others are missing.

        The greatest comes first, because its memory is enough for all others. Then the smallest follows.
        """
        if missing := self._missing:
            self._capture_size(missing[0 if self._graphs else -1])
        return bool(self._missing)

    def logits(self, packed: PackedInputs, last_tokens: Tensor) -> Tensor | None:
        """Logits [n, vocab_size] of a step packed on the host, until the next step. None if there is no graph."""
        n = len(packed.tokens)
        at = bisect_left(self._sizes, n)
        if at == len(self._sizes):
            return None
        replay = self._graphs.get(self._sizes[at]) or self._capture_size(self._sizes[at])
        if replay is None:
            return None
        self._inputs.fill(packed, last_tokens)
        replay()
        return self._logits[:n]

    def _capture_size(self, size: int) -> Replay | None:
        """Capture a graph. If that fails, probably for lack of memory, no graph is made of this size or above."""
        inputs, logits = self._inputs.first(size), self._logits[:size]
        self._inputs.clear()
        try:
            self._graphs[size] = self._capture(lambda: logits.copy_(self._compute(inputs, self._inputs.last_tokens)))
        except Exception as error:  # from PyTorch or Triton: the step can still be computed without a graph
            why = f"{type(error).__name__}: {one_line(error)}"
            log.warning("cannot capture a graph of %d sequences, such steps are computed without one: %s", size, why)
            self._sizes = [smaller for smaller in self._sizes if smaller < size]
            return None
        return self._graphs[size]


class GraphExecutor:
    """The `Executor` that replays graphs of up to `max_slices` decoding slices. `eager` computes all other steps."""

    def __init__(self, eager: TorchExecutor, max_slices: int, capture: Capture) -> None:
        self._eager = eager
        self.graphs = DecodeGraphs(self._decode, eager.info, max_slices, eager.device, capture)

    def start(self, batch: StepBatch, views: Views, before: LastTokens) -> tuple[Tensor, Sequence[Sampled]]:
        """See `Executor`."""
        if only_decodes(batch, views):
            logits = self.graphs.logits(self._eager.pack(batch, before, CPU), before.tokens)
            if logits is not None:
                return torch.empty(0), self._eager.head.sample_logits(logits, [*chain.from_iterable(views)])
        return self._eager.start(batch, views, before)

    def idle(self) -> bool:
        """Capture the next graph."""
        return self.graphs.capture_next()

    def _decode(self, inputs: PackedInputs, last_tokens: Tensor) -> Tensor:
        """Logits [T, vocab_size] of every row."""
        return self._eager.model.logits(self._eager.hidden(inputs, last_tokens))


def only_decodes(batch: StepBatch, views: Views) -> bool:
    """Whether every slice is one token of text, after which one is sampled. Graphs have no products of adapters.

    A slice of one token samples at most one.
    """
    if not batch.n_tokens == sum(map(len, views)) == len(batch.slices):
        return False
    return not any(item.media or item.adapter or item.scores_prompt for item in batch.slices)
