"""Attention by Triton kernels, which read keys and values in their pages.

Many programs share the keys of a slice of up to SHORT tokens: a single long sequence then fills the device. A plan
divides the keys. It is made on the device once a step, by what the slices hold then. Longer slices are split into tiles
of queries. A row's bits do not depend on other rows. With `deterministic` they do not depend on the size of the chunk
either.
Nothing here waits for the device. Grids and scratch depend on the GPU, on the sizes of the inputs and on the spans. A
CUDA graph is captured with the longest spans; a shorter step copies its tensors into the graph's memory and replays it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import LayerCache, layer_cache
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows
from model.attention.tiles import (
    FAN,
    SPLIT,
    Gpu,
    KernelHeads,
    Load,
    Tiles,
    bounds,
    load_of,
    power,
    tiles_of,
)
from model.batch import PAGE_SIZE, SHORT
from model.config.latent import Heads
from model.errors import OptionError
from model.kernels import cuda as kernels
from model.kernels.cuda.attention import ITEM

MAX_WIDTH, MAX_GROUP, MAX_LATENT, MAX_TURNING = 256, 64, 512, 64
"""Kernels of greater groups would keep kilobytes of their sums in memory, on every GPU. Latents divide theirs."""
NO_WINDOW = 2**31 - 1
WRITE_ROWS, JOIN_HEADS, JOIN_STAGES = 16, 4, 8
"""Heads that a program writes, of any tokens; heads that a program joins, of one token, and how it fetches ahead."""
PLAN_SLICES, PLAN_ITEMS = 256, 32
"""Slices that a program of `plan` reads at a time, and items that it writes."""


class Plan(NamedTuple):
    """How programs divide the keys of short slices, and the memory for their sums. All layers of a step share it."""

    items: Tensor
    firsts: Tensor
    tops: Tensor
    sums: Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one pool, and the plan of its short slices for each kind of heads, made by the first layer."""

    inputs: PoolInputs
    load: Load
    plans: dict[KernelHeads, Plan] = field(default_factory=dict)

    @property
    def window(self) -> int:
        return min(self.inputs.window or NO_WINDOW, NO_WINDOW)


class TritonAttention(Attention):
    """The backend of Triton kernels for CUDA devices. Pages are in float32, bfloat16, float16 or float8_e4m3fn.

    float8 has no scales: a value beyond 448 is stored as 448. A page stores all positions of one head, then those of
    the next head: a program reads the positions of a head in one piece.
    """

    page_size = PAGE_SIZE
    capturable = True
    dtypes = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn))

    def __init__(self, deterministic: bool = False, gpu: Gpu | None = None) -> None:
        from model.kernels.cuda.attention import parts, plan, tiles, write

        self._write, self._plan, self._tiles = write.write, plan.plan, tiles.attend_tiles
        self._parts, self._join = parts.attend_parts, parts.join
        self._fixed = deterministic
        self._gpu = gpu
        self._write_rows = WRITE_ROWS if not kernels.interpreted() else 64 * WRITE_ROWS  # its programs are slow

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype is torch.float8_e4m3fn and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
            return "keeps keys and values in fp8 on GPUs of compute capability 8.9 or more only"
        return kernels.obstacle(device) or super().obstacle(device, dtype)

    @classmethod
    def unfit(cls, heads: Heads) -> str | None:
        group = heads.n_heads // heads.n_groups
        if heads.latent and not (heads.latent <= MAX_LATENT and heads.rope_dim <= MAX_TURNING):
            return (
                f"serves latents of up to {MAX_LATENT} values and {MAX_TURNING} rotary channels, the model has "
                f"{heads.latent} and {heads.rope_dim}"
            )
        if not heads.latent and (heads.head_dim > MAX_WIDTH or group > MAX_GROUP):
            return (
                f"serves heads of up to {MAX_WIDTH} and groups of up to {MAX_GROUP} queries, the model has "
                f"{heads.head_dim} and {group}"
            )
        return None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """See `Attention.allocate`; only the strides differ."""
        n_pages, n_kv_heads, head_dim, *latent = shape
        sizes = (n_pages, n_kv_heads, self.page_size, head_dim)
        halves = [torch.empty(sizes, dtype=dtype, device=device).transpose(1, 2) for _ in range(2 - any(latent))]
        return layer_cache(halves, *latent)

    def prepare(self, inputs: PoolInputs) -> Prepared:
        return Prepared(inputs, load_of(inputs.spans))

    def attend(self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Prepared) -> Tensor:
        heads = _heads(qkv.shape, n_heads, cache)
        q = self._store(qkv, heads, rope, cache, prepared)
        out = qkv.new_empty(len(q), n_heads, heads.value)
        if prepared.load.n_slices:
            self._short(q, cache, out, heads, prepared)
        if prepared.load.n_slices < len(prepared.inputs.numbers):
            self._longer(q, cache, out, heads, prepared)
        return out

    def _store(self, qkv: Tensor, heads: KernelHeads, rope: RopeRows, cache: LayerCache, prepared: Prepared) -> Tensor:
        """Store keys and values; return the rotated q [T, n_heads, head_dim]."""
        stored = cache.k.dtype
        dtype = qkv.dtype if stored.itemsize == 1 else stored
        q = qkv.new_empty((len(qkv), heads.n_heads, heads.width), dtype=dtype)
        n_rows, still = len(qkv) * qkv.shape[1], heads.value if cache.shared else 0
        self._write[(-(-n_rows // self._write_rows),)](
            *(qkv, *rope, prepared.inputs.slots, q, cache.k, cache.v, n_rows),
            *(rope.q_factors is not None, qkv.shape[1], heads.n_heads, heads.n_kv, heads.width, still),
            *(power(max(1, still)), power((heads.width - still) // 2), self._write_rows, self.page_size),
        )
        return q

    def _short(self, q: Tensor, cache: LayerCache, out: Tensor, heads: KernelHeads, prepared: Prepared) -> None:
        inputs, max_queries = prepared.inputs, prepared.load.max_queries
        tiles = self._sizes("parts", heads, q, cache)
        n_queries = tiles.queries(heads)
        n_tiles = -(-max_queries // n_queries)
        plan = prepared.plans.get(heads) or self._planned(heads, n_tiles, prepared)
        self._parts[(len(plan.items) * n_tiles, heads.n_groups)](
            *(q, cache.k, cache.v, inputs.pages, plan.items, plan.tops, plan.sums, n_tiles, prepared.window),
            *(_scale(heads), heads.n_kv, heads.n_heads, heads.group, heads.width, heads.value, heads.padded),
            *(heads.turning, n_queries, heads.members, tiles.keys, self.page_size, SPLIT, FAN, _multiplied(q.dtype)),
            **_options(tiles, fixed=True),
        )
        self._join[(len(inputs.table) * max_queries, -(-heads.n_heads // JOIN_HEADS))](
            *(plan.tops, plan.sums, inputs.table, plan.firsts, out, max_queries, SHORT, heads.n_heads, heads.value),
            *(heads.padded, JOIN_HEADS, SPLIT, FAN, JOIN_STAGES),
            enable_fp_fusion=False,
        )

    def _planned(self, heads: KernelHeads, n_tiles: int, prepared: Prepared) -> Plan:
        """Plan the short slices of this step, on the device."""
        table = prepared.inputs.table
        n_items, n_sums = bounds(prepared.load, self._gpu_of(table), heads.n_groups, n_tiles)
        plan = prepared.plans[heads] = Plan(
            table.new_empty((n_items, ITEM)),
            table.new_empty((len(table), 2), dtype=torch.int32),
            table.new_empty((n_sums, heads.n_heads, 2), dtype=torch.float32),
            table.new_empty((n_sums, heads.n_heads, heads.value), dtype=torch.float32),
        )
        self._plan[(-(-n_items // PLAN_ITEMS),)](
            *(table, plan.firsts, plan.items, len(table), n_items, n_sums, SHORT, self.page_size, SPLIT, FAN),
            *(PLAN_SLICES, PLAN_ITEMS),
        )
        return plan

    def _longer(self, q: Tensor, cache: LayerCache, out: Tensor, heads: KernelHeads, prepared: Prepared) -> None:
        inputs = prepared.inputs
        tiles = self._sizes("parts" if self._fixed else "whole", heads, q, cache)
        n_queries = tiles.queries(heads)
        self._tiles[(len(q) // n_queries + len(inputs.table), heads.n_groups)](
            *(q, cache.k, cache.v, inputs.pages, inputs.table, out, len(inputs.table)),
            *(prepared.window, _scale(heads), SHORT, self._fixed, heads.n_kv, heads.n_heads, heads.group),
            *(heads.width, heads.value, heads.padded, heads.turning, n_queries, heads.members, tiles.keys),
            *(self.page_size, SPLIT, FAN, _multiplied(q.dtype)),
            **_options(tiles, fixed=self._fixed),
        )

    def _sizes(self, kind: Literal["parts", "whole"], heads: KernelHeads, q: Tensor, cache: LayerCache) -> Tiles:
        return tiles_of(kind, self._gpu_of(q), heads.padded, q.itemsize, cache.k.itemsize)

    def _gpu_of(self, x: Tensor) -> Gpu:
        return self._gpu or gpu_of(x.device)


@cache
def gpu_of(device: torch.device) -> Gpu:
    """Return the GPU's properties on which sizes depend; the least ones on a CPU, under the interpreter."""
    if device.type != "cuda":
        return Gpu(kernels.OLDEST, 1)
    properties = torch.cuda.get_device_properties(device)
    return Gpu((properties.major, properties.minor), properties.multi_processor_count)


def _heads(shape: Sequence[int], n_heads: int, cache: LayerCache) -> KernelHeads:
    _, n_all, width = shape
    heads = Heads(n_heads, (n_all - n_heads) // 2, width)
    if cache.shared:
        heads = Heads(n_heads, 1, width, cache.v.shape[3])
    if (why := TritonAttention.unfit(heads)) is not None:
        raise OptionError(f"--attention triton {why}; use --attention sdpa")
    return KernelHeads(n_heads, heads.n_groups, heads.n_kv_heads, width, heads.value_dim)


def _scale(heads: KernelHeads) -> float:
    """Return the factor of scores, whose weights are powers of two."""
    return math.log2(math.e) * heads.width**-0.5


def _options(tiles: Tiles, *, fixed: bool) -> dict[str, int | bool]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": not fixed}


def _multiplied(dtype: torch.dtype) -> object:
    """Return Triton's name of the format of products; its interpreter cannot multiply bfloat16."""
    import triton.language as tl

    wide = dtype is torch.float32 or (dtype is torch.bfloat16 and kernels.interpreted())
    return tl.float32 if wide else {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
