"""Attention by the compiled kernels: they read keys and values in their pages, without a gather or a mask.

The kernel has its own layout inside a page, see kernels/cpu/attention/cells.h. A row has the same bits in a decode
step, in a chunk of any size, and together with any other sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import LayerCache, layer_cache
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows
from model.config.cache_formats import CACHE_FORMATS
from model.config.latent import Heads
from model.errors import OptionError
from model.kernels.cpu import records
from model.kernels.cpu.functions import Kernels
from model.machine.device import name_of


@dataclass(slots=True)
class Prepared:
    """A step of one pool. The first layer, which knows the heads, makes `call`; all layers use it."""

    inputs: PoolInputs
    call: Any = None


class PagedAttention(Attention):
    """The backend for CPUs. Pages are in bfloat16, float32 or int8; in int8, a head's key or value has a scale."""

    page_size = records.PAGE_SIZE
    dtypes = frozenset(records.CELL_KINDS)

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cpu":
            return f"runs on a CPU only, the device is {device.type}; use --attention sdpa"
        return super().obstacle(device, dtype)

    @classmethod
    def unfit(cls, heads: Heads) -> str | None:
        head_dim, group = heads.head_dim, heads.n_heads // heads.n_groups
        widest = records.MAX_KEY_DIM if heads.latent else records.MAX_HEAD_DIM
        if head_dim <= widest and heads.value_dim <= records.MAX_HEAD_DIM and group <= records.MAX_QUERIES:
            return None
        if heads.latent:
            return (
                f"serves latents of up to {records.MAX_HEAD_DIM} values and keys of up to {records.MAX_KEY_DIM}, "
                f"the model has {heads.latent} and {head_dim}"
            )
        return (
            f"serves heads of up to {records.MAX_HEAD_DIM} and groups of up to {records.MAX_QUERIES} queries, "
            f"the model has {head_dim} and {group}"
        )

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """See `Attention.allocate`. The keys of a page are followed by its values, if it has any of its own."""
        n_pages, n_kv_heads, head_dim, *latent = shape
        width = CACHE_FORMATS[name_of(dtype)].head_bytes(head_dim) // dtype.itemsize
        n_halves = 2 - any(latent)
        both = torch.empty(n_pages, n_halves, self.page_size, n_kv_heads, width, dtype=dtype, device=device)
        return layer_cache(both.unbind(1), *latent)

    def prepare(self, inputs: PoolInputs) -> Prepared:
        return Prepared(inputs)

    def attend(self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Prepared) -> Tensor:
        x = qkv.float()
        heads = Heads(n_heads, (x.shape[1] - n_heads) // 2, x.shape[2])
        if cache.shared:
            heads = Heads(n_heads, 1, x.shape[2], cache.v.shape[3])
        call = prepared.call or self._call(prepared, len(x), heads, records.CELL_KINDS[cache.k.dtype])
        out = x.new_empty(len(x), n_heads, heads.value_dim)
        call.qkv, call.out = records.floats("qkv", x), records.floats("out", out)
        call.rotations = records.floats("rotations", rope.rotations)
        call.q_factors = None if rope.q_factors is None else records.floats("q_factors", rope.q_factors)
        call.cells = cells_at(cache.k)
        self.kernels.attention(call)
        return out.to(qkv.dtype)

    def _call(self, prepared: Prepared, n_rows: int, heads: Heads, kind: int) -> Any:
        """Return the arguments that all layers share."""
        if (why := self.unfit(heads)) is not None:
            raise OptionError(f"--attention paged {why}")  # `choose` checked it; C would write beyond its arrays
        inputs = prepared.inputs
        call = prepared.call = records.struct("attention_call")(
            slots=records.pointer("slots", inputs.slots, torch.int64),
            pages=records.pointer("pages", inputs.pages, torch.int64),
            n_rows=n_rows,
            n_heads=heads.n_heads,
            n_kv_heads=heads.n_groups,
            head_dim=heads.head_dim,
            latent=heads.latent,
            window=inputs.window or 0,
            kind=kind,
        )
        self.kernels.plan(call, inputs.table)
        return call


def cells_at(k: Tensor) -> int:
    """Return the address of the pages whose keys are `k`; the values of a page follow its keys."""
    return records.pointer("k", k, *records.CELL_KINDS, dense=False)
