"""Attention by the compiled kernels: they read keys and values in their pages, without a gather or a mask.

The kernel has its own layout inside a page, see kernels/cpu/attention/cells.h. A row has the same bits in a decode
step, in a chunk of any size, and together with any other sequences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows
from model.errors import OptionError
from model.kernels.cpu import native, records
from model.kernels.cpu.packed import padded
from model.linear.schemes import CACHE_FORMATS
from model.machine.device import name_of

ENOUGH = 64
"""Long tasks are split if there are fewer tasks than this: every thread then has work."""

SPLIT = records.SPLIT_PAGES

Task = tuple[int, int, int, int, int, int, int]
"""row, number of rows, position of the first row, entry of `pages`, its logical block, end block, part."""
Join = tuple[int, int, int, int]
"""row, number of rows, first part, number of parts."""


@dataclass(slots=True)
class Prepared:
    """A step of one pool. The first layer, which knows the heads, makes `call`; all layers use it. `referenced` keeps
    the memory that it points to alive."""

    inputs: PoolInputs
    call: records.AttentionCall | None = None
    referenced: tuple[Tensor | NDArray[np.void], ...] = ()


class PagedAttention(Attention):
    """The backend for CPUs. Pages are in bfloat16, float32 or int8; in int8, a head's key or value has a scale."""

    page_size = records.PAGE_SIZE
    dtypes = frozenset(records.CELL_KINDS)

    def __init__(self) -> None:
        self._kernels = native.needed()

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cpu":
            return f"runs on a CPU only, the device is {device.type}; use --attention sdpa"
        if native.kernels() is None:
            return "needs the compiled kernels; build them: python -m model.kernels.cpu.build"
        return super().obstacle(device, dtype)

    @classmethod
    def unfit(cls, n_heads: int, n_kv_heads: int, head_dim: int) -> str | None:
        group = n_heads // n_kv_heads
        if head_dim <= records.MAX_HEAD_DIM and group <= records.MAX_QUERIES:
            return None
        return (
            f"serves heads of up to {records.MAX_HEAD_DIM} and groups of up to {records.MAX_QUERIES} queries, "
            f"the model has {head_dim} and {group}"
        )

    def allocate(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """See `Attention.allocate`. The keys of a page are followed by its values."""
        n_pages, n_kv_heads, head_dim = shape
        width = CACHE_FORMATS[name_of(dtype)].head_bytes(head_dim) // dtype.itemsize
        both = torch.empty(n_pages, 2, self.page_size, n_kv_heads, width, dtype=dtype, device=device)
        return LayerCache(both[:, 0], both[:, 1])

    def prepare(self, inputs: PoolInputs) -> Prepared:
        return Prepared(inputs)

    def call(self, prepared: Prepared, shape: Sequence[int], n_heads: int, dtype: torch.dtype) -> records.AttentionCall:
        """The arguments that all layers share. qkv is [T, n_heads + 2 n_kv_heads, head_dim], the cache has `dtype`."""
        if prepared.call is None:
            prepared.call = self._call(prepared, shape, n_heads, records.CELL_KINDS[dtype])
        return prepared.call

    def rows_a_task(self, group: int) -> int:
        """The greatest number of rows of a task where so many queries share a key."""
        return min(records.MAX_ROWS, records.MAX_QUERIES // group)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        qkv = torch.cat((q, k, v), dim=1).float()
        return self._attend(qkv, q.shape[1], None, cache, prepared).to(q.dtype)

    def attend_unrotated(
        self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Prepared
    ) -> Tensor:
        return self._attend(qkv.float(), n_heads, rope, cache, prepared).to(qkv.dtype)

    def _attend(
        self, qkv: Tensor, n_heads: int, rope: RopeRows | None, cache: LayerCache, prepared: Prepared
    ) -> Tensor:
        """qkv [T, n_heads + 2 n_kv_heads, head_dim] float32 -> [T, n_heads, head_dim] float32."""
        call = self.call(prepared, qkv.shape, n_heads, cache.k.dtype)
        out = qkv.new_empty(qkv.shape[0], n_heads, qkv.shape[2])
        point_to(call, qkv, out, rope)
        call.cells = cells_at(cache.k)
        self._kernels.attention(call)
        return out

    def _call(self, prepared: Prepared, shape: Sequence[int], n_heads: int, kind: int) -> records.AttentionCall:
        n_rows, n_all, head_dim = shape
        n_kv_heads = (n_all - n_heads) // 2
        group = n_heads // n_kv_heads
        if (why := self.unfit(n_heads, n_kv_heads, head_dim)) is not None:
            raise OptionError(f"--attention paged {why}")  # `choose` has asked; C would write beyond its arrays
        inputs = prepared.inputs
        tasks = _tasks(inputs, self.rows_a_task(group))
        joins: list[Join] = []
        if len(tasks) * n_kv_heads < ENOUGH:
            tasks, joins = _split(tasks)
        part_queries = max((rows for _, rows, _, _ in joins), default=0) * group
        n_parts = len(tasks) * n_kv_heads * part_queries * (padded(head_dim, 16) + 2)
        parts = torch.empty(n_parts, dtype=torch.float32, device="cpu")
        tables = np.array(tasks, dtype=records.TASK), np.array(joins, dtype=records.JOIN)
        prepared.referenced = (*tables, parts)
        return records.AttentionCall(
            parts=records.pointer("parts", parts, torch.float32),
            slots=records.pointer("slots", inputs.slots, torch.int64),
            pages=records.pointer("pages", inputs.pages, torch.int64),
            tasks=tables[0].ctypes.data,
            joins=tables[1].ctypes.data,
            n_rows=n_rows,
            n_tasks=len(tasks),
            n_joins=len(joins),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            window=inputs.window or 0,
            kind=kind,
            part_queries=part_queries,
        )


def point_to(call: records.AttentionCall, qkv: Tensor, out: Tensor, rope: RopeRows | None) -> None:
    """Let a call attend from `qkv` to `out` and rotate by `rope`, or not at all. The caller keeps them alive."""
    call.qkv, call.out = (records.pointer(*part, torch.float32) for part in (("qkv", qkv), ("out", out)))
    rotations, factors = (None, None) if rope is None else rope
    call.rotations = None if rotations is None else records.pointer("rotations", rotations, torch.float32)
    call.q_factors = None if factors is None else records.pointer("q_factors", factors, torch.float32)


def cells_at(k: Tensor) -> int:
    """The address of the pages whose keys are `k`; the values of a page follow its keys."""
    return records.pointer("k", k, *records.CELL_KINDS, dense=False)


def _tasks(inputs: PoolInputs, n: int) -> list[Task]:
    """One task for up to n rows of a span. The most expensive come first: no thread should start one of them late."""
    found = []
    for span in inputs.spans:
        for first in range(0, span.n_queries, n):
            rows, position = min(n, span.n_queries - first), span.start + first
            first_key = 0 if inputs.window is None else max(0, position - inputs.window + 1)
            block, end = first_key // records.PAGE_SIZE, (position + rows - 1) // records.PAGE_SIZE + 1
            page = span.page + block - span.first_key // records.PAGE_SIZE
            found.append(
                ((end - block) * math.sqrt(rows), (span.row + first, rows, position, page, block, end, records.WHOLE))
            )
    found.sort(reverse=True)
    return [task for _, task in found]


def _split(tasks: list[Task]) -> tuple[list[Task], list[Join]]:
    """Tasks cut at the blocks where the kernel starts new sums, and the joins of these sums."""
    parts: list[Task] = []
    joins: list[Join] = []
    for row, rows, position, page, block, end, _ in tasks:
        cuts = [block, *range((block // SPLIT + 1) * SPLIT, end, SPLIT), end]
        if len(cuts) > 2:
            joins.append((row, rows, len(parts), len(cuts) - 1))
        for first, stop in pairwise(cuts):
            part = len(parts) if len(cuts) > 2 else records.WHOLE
            parts.append((row, rows, position, page + first - block, first, stop, part))
    return parts, joins
