"""Attention by Triton kernels: keys and values are read from their pages where they lie.

Slices of up to SHORT tokens are split over their keys, so that a single long sequence fills the device; longer ones go
by tiles of queries. A row gives the same bits beside any others; with `deterministic` in chunks of any size, too.
Nothing here waits for the device, and grids depend on the sizes of the inputs and on the spans alone: a step captured
in a CUDA graph with the longest spans serves shorter ones whose tensors are copied into its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs
from model.errors import OptionError
from model.kernels import cuda as kernels

MAX_WIDTH, MAX_GROUP = 256, 128
SHORT = 16
"""Tokens of a slice that is split over its keys."""
SPLIT = 512
"""Keys a part: a program's work. Parts begin at its multiples, so it is one of every `Tiles.keys` and of the page."""
FILL = 1024
"""Programs that fill any device: with fewer, those of a slice's parts are made more."""
IN_TURN = 8
"""Parts that one program may do one after the other."""
NO_WINDOW = 2**31 - 1


class Tiles(NamedTuple):
    """Least rows of a tile (a query with a head of its group), keys a turn of the loop, warps, stages."""

    rows: int
    keys: int
    warps: int
    stages: int


PARTS = {
    (2, 64): Tiles(16, 64, 4, 3),
    (2, 128): Tiles(16, 64, 4, 3),
    (2, 256): Tiles(16, 32, 4, 3),
    (4, 256): Tiles(16, 16, 4, 2),
}
WHOLE = {
    (2, 64): Tiles(128, 64, 4, 3),
    (2, 128): Tiles(128, 64, 8, 3),
    (2, 256): Tiles(64, 32, 4, 3),
    (4, 64): Tiles(64, 32, 4, 2),
    (4, 256): Tiles(16, 16, 4, 2),
}
"""Of short and of longer slices, by bytes of a value where it is multiplied and greatest head_dim. Not yet tuned. A
third stage is what it takes to fetch keys ahead, since their pages are fetched before."""
WRITE_ROWS, JOIN_HEADS = 16, 4
"""Heads of tokens that a program writes; heads of a token that it joins."""


class Heads(NamedTuple):
    """Sizes that kernels are compiled for: query heads, key heads, values a head, those rounded up."""

    n_heads: int
    n_kv: int
    width: int
    padded: int

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one pool: tokens of the longest short slice and parts of the one with most (0: there is none), and
    whether any slice is longer."""

    inputs: PoolInputs
    most: int
    n_parts: int
    longer: bool

    @property
    def window(self) -> int:
        return min(self.inputs.window or NO_WINDOW, NO_WINDOW)


class TritonAttention(Attention):
    """On CUDA devices, over pages in float32, bfloat16, float16 or float8_e4m3fn.

    float8 is used without scales: what is beyond 448 is stored as 448. In memory a page holds the positions of one
    head after another, so that a program reads it in one piece.
    """

    page_size = 32
    capturable = True
    dtypes = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn))

    def __init__(self, deterministic: bool = False) -> None:
        from model.kernels.cuda import attention

        self._kernels = attention
        self._fixed = deterministic
        self._write_rows = WRITE_ROWS if not kernels.interpreted() else 64 * WRITE_ROWS  # whose programs are slow

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype is torch.float8_e4m3fn and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
            return "keeps keys and values in fp8 on GPUs of compute capability 8.9 or more only"
        return kernels.obstacle(device) or super().obstacle(device, dtype)

    def allocate(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """As the interface says, the strides apart."""
        n_pages, n_kv_heads, head_dim = shape
        sizes = (n_pages, n_kv_heads, self.page_size, head_dim)
        return LayerCache(*(torch.empty(sizes, dtype=dtype, device=device).transpose(1, 2) for _ in range(2)))

    def prepare(self, inputs: PoolInputs) -> Prepared:
        short = [span for span in inputs.spans if span.n_queries <= SHORT]
        parts = ((span.start + span.n_queries - 1) // SPLIT - span.first_key // SPLIT + 1 for span in short)
        most = max((span.n_queries for span in short), default=0)
        return Prepared(inputs, most, max(parts, default=0), len(short) < len(inputs.spans))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        return self._attend(torch.cat((q, k, v), dim=1), q.shape[1], None, cache, prepared)

    def attend_unrotated(
        self, qkv: Tensor, n_heads: int, turn: Tensor, cache: LayerCache, prepared: Prepared
    ) -> Tensor:
        return self._attend(qkv, n_heads, turn, cache, prepared)

    def _attend(self, qkv: Tensor, n_heads: int, turn: Tensor | None, cache: LayerCache, prepared: Prepared) -> Tensor:
        """qkv [T, n_heads + 2 n_kv_heads, head_dim] -> [T, n_heads, head_dim]."""
        heads = _heads(qkv.shape, n_heads)
        kept = cache.k.dtype
        q = qkv.new_empty((len(qkv), n_heads, heads.width), dtype=qkv.dtype if kept.itemsize == 1 else kept)
        n_rows = len(qkv) * qkv.shape[1]
        self._kernels.write[(-(-n_rows // self._write_rows),)](
            *(qkv, turn, prepared.inputs.slots, q, cache.k, cache.v, n_rows),
            *(turn is not None, n_heads, heads.n_kv, heads.width, _power(heads.width // 2), self._write_rows),
            self.page_size,
        )
        out = torch.empty_like(q, dtype=qkv.dtype)
        if prepared.most:
            self._short(q, cache, out, heads, prepared)
        if prepared.longer:
            self._longer(q, cache, out, heads, prepared)
        return out

    def _short(self, q: Tensor, cache: LayerCache, out: Tensor, heads: Heads, prepared: Prepared) -> None:
        inputs, most = prepared.inputs, prepared.most
        n_slices = len(inputs.table)
        tiles, n_queries, group = _tiles(PARTS, heads, q.dtype)
        n_tiles = -(-most // n_queries)
        programs = n_slices * n_tiles * heads.n_kv
        abreast = min(prepared.n_parts, max(-(-FILL // programs), -(-prepared.n_parts // IN_TURN)))
        n_sums = len(inputs.pages) // (SPLIT // self.page_size) + 2 * n_slices
        tops = q.new_empty((n_sums, most, heads.n_heads, 2), dtype=torch.float32)
        parts = q.new_empty((n_sums, most, heads.n_heads, heads.width), dtype=torch.float32)
        self._kernels.attend_parts[(n_slices * n_tiles, heads.n_kv, abreast)](
            *(q, cache.k, cache.v, inputs.pages, inputs.table, tops, parts, n_tiles, most),
            *(prepared.window, _scale(heads), SHORT, heads.n_kv, heads.group, heads.width, heads.padded),
            *(n_queries, group, tiles.keys, self.page_size, SPLIT, _multiplied(q.dtype)),
            **_options(tiles, fixed=True),
        )
        self._kernels.join[(n_slices * most, -(-heads.n_heads // JOIN_HEADS))](
            *(tops, parts, inputs.table, out, most, SHORT, heads.n_heads, heads.width, heads.padded, JOIN_HEADS),
            *(self.page_size, SPLIT),
            enable_fp_fusion=False,
        )

    def _longer(self, q: Tensor, cache: LayerCache, out: Tensor, heads: Heads, prepared: Prepared) -> None:
        inputs = prepared.inputs
        tiles, n_queries, group = _tiles(PARTS if self._fixed else WHOLE, heads, q.dtype)
        self._kernels.attend_tiles[(len(q) // n_queries + len(inputs.table), heads.n_kv)](
            *(q, cache.k, cache.v, inputs.pages, inputs.table, out, len(inputs.table)),
            *(prepared.window, _scale(heads), SHORT, self._fixed, heads.n_kv, heads.group, heads.width),
            *(heads.padded, n_queries, group, tiles.keys, self.page_size, SPLIT, _multiplied(q.dtype)),
            **_options(tiles, fixed=self._fixed),
        )


def _heads(shape: Sequence[int], n_heads: int) -> Heads:
    _, n_all, width = shape
    heads = Heads(n_heads, (n_all - n_heads) // 2, width, max(16, _power(width)))
    if width > MAX_WIDTH or heads.group > MAX_GROUP:
        raise OptionError(
            f"--attention triton serves heads of up to {MAX_WIDTH} and groups of up to {MAX_GROUP} queries, "
            f"the model has {width} and {heads.group}; use --attention sdpa"
        )
    return heads


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def _tiles(table: dict[tuple[int, int], Tiles], heads: Heads, dtype: torch.dtype) -> tuple[Tiles, int, int]:
    """Sizes of a program: its tiles, and how many queries times heads of a group they hold."""
    tiles = next(tiles for (size, width), tiles in table.items() if size == dtype.itemsize and width >= heads.padded)
    group = _power(heads.group)
    return tiles, max(1, tiles.rows // group), group


def _scale(heads: Heads) -> float:
    """Of scores whose weights are powers of two."""
    return math.log2(math.e) * heads.width**-0.5


def _options(tiles: Tiles, *, fixed: bool) -> dict[str, int | bool]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": not fixed}


def _multiplied(dtype: torch.dtype) -> object:
    """Triton's name of the format; its interpreter multiplies no bfloat16."""
    import triton.language as tl

    wide = dtype is torch.float32 or (dtype is torch.bfloat16 and kernels.interpreted())
    return tl.float32 if wide else {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
