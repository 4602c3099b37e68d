"""Steps of up to GRAPH_ROWS rows as CUDA graphs, and all that only decode: a graph for each shape, over one memory.

A graph repeats the same kernels on the same addresses. Its inputs therefore have static memory, which is filled before
each replay. Rows beyond those of the step are padding (slot -1), and so are slices (no queries). Grids are those of the
longest sequences; programs without work end at once. All graphs write their logits to one place, because memory that
belongs to one graph cannot be used by the others.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.attention.inputs import TABLE_WIDTH, PackedInputs, Span
from model.batch import GRAPH_ROWS, SHORT, PoolSpec, RunnerInfo, StepBatch, max_pages
from model.errors import one_line
from model.machine.device import of_memory
from model.machine.transfers import upload
from model.step.ahead import LastTokens
from model.step.executors import Views
from model.step.executors.torch import TorchExecutor
from model.step.packing import Columns, inputs_of
from model.step.sampler import Sampled

log = logging.getLogger(__name__)

LEAST_ROWS, FEW_SLICES = 64, 32
"""The least graph of a step with prompts, and the slices of those that serve few. More slices cost empty programs."""
ATTEMPTS = 2
"""Captures of a graph that fail before no other is tried."""

Compute = Callable[[PackedInputs, Tensor], Tensor]
"""Logits [D, vocab_size] from packed inputs and the tokens [M] that the step before sampled; waits for nothing."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], Replay]
"""Captures what a function queues on the device, to replay it. The function returns static memory."""


def buckets(greatest: int) -> list[int]:
    """Return the numbers of slices that have a graph. Each is at most a quarter, or 4, greater than the one before.

    Worked example: 20 -> 1, 2, 4, 8, 12, 16, 20.
    """
    sizes = [1, 2, 4]
    while sizes[-1] < greatest:
        sizes.append(sizes[-1] + max(4, 2 ** (sizes[-1].bit_length() - 3)))
    return [*(size for size in sizes if size < greatest), greatest]


class GraphShape(NamedTuple):
    """The greatest numbers of rows and slices of the steps that a graph serves. If equal, each slice has one token."""

    rows: int
    slices: int

    @property
    def decodes(self) -> bool:
        return self.rows == self.slices


def shapes(max_sequences: int, max_step_tokens: int) -> list[GraphShape]:
    """Return the shape of each graph, the least first."""
    most = min(GRAPH_ROWS, max_step_tokens)
    rows = [n for n in buckets(most) if n >= min(LEAST_ROWS, most)]
    mixed = {GraphShape(n, min(slices, max_sequences, n - 1)) for n in rows for slices in (FEW_SLICES, max_sequences)}
    return sorted([*(GraphShape(n, n) for n in buckets(max_sequences)), *(shape for shape in mixed if shape.slices)])


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
        # Another thread may allocate meanwhile: it loads an adapter, or reads stored pages.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local")
        with torch.cuda.stream(current), capture:
            compute()  # if this fails, the stream of `graph` may stay the current one
        return graph.replay


class StaticInputs:
    """The inputs of steps of up to `most` rows and slices in static memory. The pages of each pool are at its end."""

    def __init__(self, info: RunnerInfo, most: GraphShape, device: torch.device) -> None:
        self._info, n = info, len(info.pools)
        self.last_tokens = torch.zeros(most.slices, dtype=torch.int64, device=device)
        sizes, pages = _sizes(most, n), [_page_entries(info, pool, most) for pool in info.pools]
        self._memory = torch.zeros(sum(sizes) + sum(pages), dtype=torch.int64, device=device)
        self._parts = self._memory.split([*sizes, *pages])
        self._starts = np.cumsum([0, *sizes]).tolist()
        # A step without slices, but for its pages. Padding slices begin after all rows.
        zeros, table = [0] * (2 * most.rows + most.slices), [most.rows, *[0] * (TABLE_WIDTH - 1)]
        self._padding = np.array([*zeros, *[-1] * (n * most.rows), *table * (n * most.slices)], dtype=np.int64)

    def first(self, shape: GraphShape) -> PackedInputs:
        """Return the inputs of the first rows and slices, with the spans of the longest sequences."""
        info, sizes = self._info, _sizes(shape, len(self._info.pools))
        parts = [part[:size] for part, size in zip(self._parts, sizes, strict=False)]
        numbers = [np.array([_longest(info, pool, n) for n in _lengths(shape)]) for pool in info.pools]
        windows = [pool.window for pool in info.pools]
        return inputs_of([*parts, *self._parts[len(sizes) :]], windows, info.page_size, numbers)

    def clear(self) -> None:
        """Make every row and slice padding."""
        self._memory[: len(self._padding)].copy_(torch.from_numpy(self._padding))

    def fill(self, step: Columns, last_tokens: Tensor) -> None:
        """Copy a step from the host; its UNKNOWN tokens refer to `last_tokens` [M]."""
        n = len(self._padding) + len(step.pages[0])
        # The device can copy from this memory while the host continues.
        host = torch.empty(n, dtype=torch.int64, pin_memory=self._memory.is_cuda)
        values = host.numpy()
        values[: len(self._padding)] = self._padding
        for start, column in zip(self._starts, step.arrays, strict=False):  # the pages of the first pool are the last
            values[start : start + len(column)] = column
        self._memory[:n].copy_(host, non_blocking=True)
        for place, pages in zip(self._parts[len(self._starts) :], step.pages[1:], strict=True):
            place[: len(pages)].copy_(upload([pages], place.device)[0])
        n_last = min(len(last_tokens), len(self.last_tokens))
        self.last_tokens[:n_last].copy_(last_tokens[:n_last])


def _sizes(shape: GraphShape, n_pools: int) -> list[int]:
    """Return the sizes of `Columns.arrays` of such a step, but for the pages."""
    rows, slices = shape
    return [rows, rows, slices, *[rows] * n_pools, *[TABLE_WIDTH * slices] * n_pools]


def _page_entries(info: RunnerInfo, pool: PoolSpec, most: GraphShape) -> int:
    """Return the greatest number of pages that all slices of a step see: of their last tokens, and of the others."""
    chunks = 0 if most.decodes else most.rows // info.page_size + most.slices
    return most.slices * max_pages(pool.window, info.max_model_len, info.page_size, 1) + chunks


def _lengths(shape: GraphShape) -> list[int]:
    """Return the lengths of slices whose memory is enough for all steps: all short ones, and one that is longer."""
    if shape.decodes:
        return [1] * shape.slices
    n_long = min(shape.slices, shape.rows // SHORT)
    return [*[SHORT] * n_long, *[1] * (shape.slices - n_long), SHORT + 1]


def _longest(info: RunnerInfo, pool: PoolSpec, n: int) -> Span:
    """Return the span of the last n tokens of the longest sequence."""
    start = max(0, info.max_model_len - n)
    return Span(0, n, start, 0 if pool.window is None else max(0, start - pool.window + 1), 0)


class StepGraphs:
    """The graphs of steps of at most `max_slices` slices."""

    def __init__(
        self, compute: Compute, info: RunnerInfo, max_slices: int, device: torch.device, capture: Capture
    ) -> None:
        self._compute = compute
        self._capture = capture
        self._shapes = shapes(max_slices, info.max_step_tokens)
        self._inputs = StaticInputs(info, GraphShape(max(shape.rows for shape in self._shapes), max_slices), device)
        self._logits = torch.empty(max_slices, info.vocab_size, device=device)
        self._graphs: dict[GraphShape, Replay] = {}
        self._failures = Counter[GraphShape]()

    @property
    def missing(self) -> list[GraphShape]:
        """Return the graphs that are not captured yet."""
        return [shape for shape in self._shapes if shape not in self._graphs]

    def capture_next(self) -> bool:
        """Capture one more graph; return whether others are missing.

        The greatest comes first, because its memory is enough for all others. Then the smallest follows.
        """
        if missing := self.missing:
            self._capture_shape(missing[0 if self._graphs else -1])
        return bool(self.missing)

    def logits(self, step: Columns, last_tokens: Tensor) -> Tensor | None:
        """Compute logits [D, vocab_size] of a step on the host, until the next step. None if there is no graph."""
        n_rows, n_slices, n_sampled = len(step.tokens), len(step.tables[0]), len(step.sample_rows)
        shape = self._least(n_rows, max(n_slices, n_sampled), decodes=n_rows == n_slices)
        replay = shape and (self._graphs.get(shape) or self._capture_shape(shape))
        if replay is None:
            return None
        self._inputs.fill(step, last_tokens)
        replay()
        return self._logits[:n_sampled]

    def _least(self, n_rows: int, n_slices: int, *, decodes: bool) -> GraphShape | None:
        """Return the least shape that serves such a step."""
        fits = (shape for shape in self._shapes if shape.rows >= n_rows and shape.slices >= n_slices)
        return next((shape for shape in fits if shape.decodes == decodes), None)

    def _capture_shape(self, shape: GraphShape) -> Replay | None:
        """Capture a graph. Steps of its shape are computed without one if that fails for want of memory, or twice."""
        inputs, logits = self._inputs.first(shape), self._logits[: shape.slices]
        self._inputs.clear()
        try:
            self._graphs[shape] = self._capture(lambda: logits.copy_(self._compute(inputs, self._inputs.last_tokens)))
        except Exception as error:  # from PyTorch or Triton: the step can still be computed without a graph
            why = f"{type(error).__name__}: {one_line(error)}"
            log.warning("cannot capture a graph of %d rows, %d sequences: %s", *shape, why)
            self._failures[shape] += 1
            if of_memory(error) or self._failures[shape] == ATTEMPTS:
                self._shapes.remove(shape)
            return None
        return self._graphs[shape]


class GraphExecutor:
    """The `Executor` that replays graphs of up to `max_slices` slices. `eager` computes all other steps."""

    def __init__(self, eager: TorchExecutor, max_slices: int, capture: Capture) -> None:
        self._eager = eager
        self.graphs = StepGraphs(self._step, eager.info, max_slices, eager.device, capture)

    def start(self, batch: StepBatch, views: Views, before: LastTokens) -> tuple[Tensor, Sequence[Sampled]]:
        """See `Executor`."""
        if batch.slices and only_samples(batch):
            logits = self.graphs.logits(self._eager.columns(batch, views, before), before.tokens)
            if logits is not None:
                return torch.empty(0), self._eager.head.sample_logits(logits, [*chain.from_iterable(views)])
        return self._eager.start(batch, views, before)

    def idle(self) -> bool:
        """Capture the next graph, and return whether others are missing."""
        return self.graphs.capture_next()

    def _step(self, inputs: PackedInputs, last_tokens: Tensor) -> Tensor:
        """Compute logits [D, vocab_size] of the rows after which tokens are sampled."""
        hidden = self._eager.hidden(inputs, last_tokens)
        return self._eager.model.logits(hidden.index_select(0, inputs.sample_rows))


def only_samples(batch: StepBatch) -> bool:
    """Return whether the step computes text and gives only tokens. Graphs have no products of adapters."""
    return not any(item.media or item.adapter or item.scores_prompt or item.params.embed for item in batch.slices)
