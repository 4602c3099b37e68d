"""Attention by the compiled kernels: keys and values are read where they lie, nothing is gathered or masked.

Inside a page the layout is the kernel's own, see kernels/attention.c. A row gives the same bits in a decode step, in a
chunk of any size and beside any other sequences.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.attention.base import Attention
from model.cache import LayerCache
from model.errors import OptionError
from model.kernels import native
from model.packing import PoolInputs, Span

_KINDS = {torch.bfloat16: 0, torch.float32: 1}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Slots to write [T], pages of all spans [P]; the spans are cut into `tasks` once the group of heads is known."""

    slots: Tensor
    pages: Tensor
    spans: tuple[Span, ...]
    window: int
    tasks: dict[int, Tensor]


class PagedAttention(Attention):
    """On CPUs, over pages in bfloat16 or float32. Raises OptionError where the kernels are missing."""

    page_size = native.PAGE_SIZE
    dtypes = frozenset(_KINDS)

    def __init__(self) -> None:
        kernels = native.kernels()
        if kernels is None:
            raise OptionError("--attention paged needs the compiled kernels; build them: python -m model.kernels.build")
        self._kernels = kernels

    def prepare(self, inputs: PoolInputs) -> Prepared:
        return Prepared(inputs.slots, inputs.pages, inputs.spans, inputs.window or 0, {})

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        qkv = torch.cat((q, k, v), dim=1).float()
        return self._attend(qkv, q.shape[1], None, cache, prepared).to(q.dtype)

    def attend_turned(self, qkv: Tensor, n_heads: int, turn: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        return self._attend(qkv.float(), n_heads, turn, cache, prepared).to(qkv.dtype)

    def _attend(self, qkv: Tensor, n_heads: int, turn: Tensor | None, cache: LayerCache, prepared: Prepared) -> Tensor:
        """qkv [T, n_heads + 2 n_kv_heads, head_dim] float32 -> [T, n_heads, head_dim] float32."""
        n_rows, n_all, head_dim = qkv.shape
        n_kv_heads = (n_all - n_heads) // 2
        group = n_heads // n_kv_heads
        if head_dim > native.MAX_HEAD_DIM or group > native.MAX_QUERIES:
            raise OptionError(
                f"--attention paged serves heads of up to {native.MAX_HEAD_DIM} and groups of up to "
                f"{native.MAX_QUERIES} queries, the model has {head_dim} and {group}; use --attention sdpa"
            )
        out = qkv.new_empty(n_rows, n_heads, head_dim)
        tasks = prepared.tasks.get(group)
        if tasks is None:
            tasks = prepared.tasks[group] = _tasks(prepared, min(native.MAX_ROWS, native.MAX_QUERIES // group))
        start, width = qkv.data_ptr(), head_dim * qkv.element_size()
        self._kernels.attention(
            q=start,
            k=start + n_heads * width,
            v=start + (n_heads + n_kv_heads) * width,
            turn=None if turn is None else turn.data_ptr(),
            out=out.data_ptr(),
            keys=cache.k.data_ptr(),
            values=cache.v.data_ptr(),
            slots=prepared.slots.data_ptr(),
            pages=prepared.pages.data_ptr(),
            tasks=tasks.data_ptr(),
            q_stride=n_all * head_dim,
            kv_stride=n_all * head_dim,
            n_rows=n_rows,
            n_tasks=len(tasks),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            window=prepared.window,
            kind=_KINDS[cache.k.dtype],
        )
        return out


def _tasks(prepared: Prepared, n: int) -> Tensor:
    """Up to n rows a task, [tasks, 5]: first row, rows, its position, entry of `pages`, logical block of that page.

    The costliest come first, so that no thread is left with a long one at the end.
    """
    found = []
    for span in prepared.spans:
        block = span.first_key // native.PAGE_SIZE
        for first in range(0, span.n_queries, n):
            rows, position = min(n, span.n_queries - first), span.start + first
            seen = max(0, position - prepared.window + 1) // native.PAGE_SIZE if prepared.window else 0
            skipped = max(0, seen - block)
            keys = position + rows - (block + skipped) * native.PAGE_SIZE
            found.append(
                (keys * math.sqrt(rows), span.row + first, rows, position, span.page + skipped, block + skipped)
            )
    found.sort(reverse=True)
    return torch.from_numpy(np.array([task[1:] for task in found], dtype=np.int64))
