"""Attention by Triton kernels, which read keys and values in their pages.

The keys of a slice of up to SHORT tokens are split into parts: a single long sequence then fills the device. Longer
slices are split into tiles of queries. A row's bits do not depend on other rows. With `deterministic` they do not
depend on the size of the chunk either.
Nothing here waits for the device. Grids depend only on the sizes of the inputs and on the spans. A CUDA graph is
captured with the longest spans; a shorter step copies its tensors into the graph's memory and replays it.
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
from model.attention.rope import RopeRows
from model.batch import PAGE_SIZE
from model.errors import OptionError
from model.kernels import cuda as kernels

MAX_WIDTH, MAX_GROUP = 256, 128
SHORT = 16
"""The greatest number of tokens of a slice whose keys are split into parts."""
SPLIT = 512
"""Keys in a part. Parts begin at its multiples, so it is a multiple of every `Tiles.keys` and of the page size."""
FILL = 1024
"""Programs that fill any device. With fewer, the parts of a slice get more programs."""
SEQUENTIAL = 8
"""The greatest number of parts that one program computes, one after the other."""
NO_WINDOW = 2**31 - 1


class Tiles(NamedTuple):
    """Sizes of a program.

    `rows` is the smallest number of rows of a tile; a row is a query and a head of its group. `keys` is the number of
    keys in a pass of the loop. `warps` and `stages` are Triton's.
    """

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
"""Tiles of short and of longer slices, by bytes of a multiplied value and greatest head_dim. They are not tuned yet.
Fetching keys ahead takes a third stage, because their pages are fetched first."""
WRITE_ROWS, JOIN_HEADS = 16, 4
"""Heads that a program writes, of any tokens; heads that a program joins, of one token."""


class Heads(NamedTuple):
    """Sizes for which kernels are compiled: query heads, key heads, head_dim, and head_dim rounded up."""

    n_heads: int
    n_kv: int
    width: int
    padded: int

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one pool.

    `max_queries` and `n_parts` are the greatest numbers of queries and of parts of a short slice, both 0 if there is no
    short slice. `longer` says whether any slice is longer.
    """

    inputs: PoolInputs
    max_queries: int
    n_parts: int
    longer: bool

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

    def __init__(self, deterministic: bool = False) -> None:
        from model.kernels.cuda import attention

        self._kernels = attention
        self._fixed = deterministic
        self._write_rows = WRITE_ROWS if not kernels.interpreted() else 64 * WRITE_ROWS  # its programs are slow

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype is torch.float8_e4m3fn and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
            return "keeps keys and values in fp8 on GPUs of compute capability 8.9 or more only"
        return kernels.obstacle(device) or super().obstacle(device, dtype)

    def allocate(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """See `Attention.allocate`; only the strides differ."""
        n_pages, n_kv_heads, head_dim = shape
        sizes = (n_pages, n_kv_heads, self.page_size, head_dim)
        return LayerCache(*(torch.empty(sizes, dtype=dtype, device=device).transpose(1, 2) for _ in range(2)))

    def prepare(self, inputs: PoolInputs) -> Prepared:
        short = [span for span in inputs.spans if span.n_queries <= SHORT]
        parts = ((span.start + span.n_queries - 1) // SPLIT - span.first_key // SPLIT + 1 for span in short)
        max_queries = max((span.n_queries for span in short), default=0)
        return Prepared(inputs, max_queries, max(parts, default=0), len(short) < len(inputs.spans))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        return self._attend(torch.cat((q, k, v), dim=1), q.shape[1], None, cache, prepared)

    def attend_unrotated(
        self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Prepared
    ) -> Tensor:
        return self._attend(qkv, n_heads, rope, cache, prepared)

    def _attend(
        self, qkv: Tensor, n_heads: int, rope: RopeRows | None, cache: LayerCache, prepared: Prepared
    ) -> Tensor:
        """qkv [T, n_heads + 2 n_kv_heads, head_dim] -> [T, n_heads, head_dim]."""
        heads = _heads(qkv.shape, n_heads)
        stored = cache.k.dtype
        q = qkv.new_empty((len(qkv), n_heads, heads.width), dtype=qkv.dtype if stored.itemsize == 1 else stored)
        n_rows = len(qkv) * qkv.shape[1]
        self._kernels.write[(-(-n_rows // self._write_rows),)](
            *(qkv, *(rope or (None, None)), prepared.inputs.slots, q, cache.k, cache.v, n_rows),
            *(
                rope is not None,
                rope is not None and rope.q_factors is not None,
                n_heads,
                heads.n_kv,
                heads.width,
                _power(heads.width // 2),
                self._write_rows,
            ),
            self.page_size,
        )
        out = torch.empty_like(q, dtype=qkv.dtype)
        if prepared.max_queries:
            self._short(q, cache, out, heads, prepared)
        if prepared.longer:
            self._longer(q, cache, out, heads, prepared)
        return out

    def _short(self, q: Tensor, cache: LayerCache, out: Tensor, heads: Heads, prepared: Prepared) -> None:
        inputs, max_queries = prepared.inputs, prepared.max_queries
        n_slices = len(inputs.table)
        tiles, n_queries, group = _tiles(PARTS, heads, q.dtype)
        n_tiles = -(-max_queries // n_queries)
        programs = n_slices * n_tiles * heads.n_kv
        parallel = min(prepared.n_parts, max(-(-FILL // programs), -(-prepared.n_parts // SEQUENTIAL)))
        n_sums = len(inputs.pages) // (SPLIT // self.page_size) + 2 * n_slices
        tops = q.new_empty((n_sums, max_queries, heads.n_heads, 2), dtype=torch.float32)
        parts = q.new_empty((n_sums, max_queries, heads.n_heads, heads.width), dtype=torch.float32)
        self._kernels.attend_parts[(n_slices * n_tiles, heads.n_kv, parallel)](
            *(q, cache.k, cache.v, inputs.pages, inputs.table, tops, parts, n_tiles, max_queries),
            *(prepared.window, _scale(heads), SHORT, heads.n_kv, heads.group, heads.width, heads.padded),
            *(n_queries, group, tiles.keys, self.page_size, SPLIT, _multiplied(q.dtype)),
            **_options(tiles, fixed=True),
        )
        self._kernels.join[(n_slices * max_queries, -(-heads.n_heads // JOIN_HEADS))](
            *(tops, parts, inputs.table, out, max_queries, SHORT, heads.n_heads, heads.width, heads.padded, JOIN_HEADS),
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
    """The least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def _tiles(table: dict[tuple[int, int], Tiles], heads: Heads, dtype: torch.dtype) -> tuple[Tiles, int, int]:
    """Sizes of a program: its tiles, and the queries and the heads of a group in a tile."""
    tiles = next(tiles for (size, width), tiles in table.items() if size == dtype.itemsize and width >= heads.padded)
    group = _power(heads.group)
    return tiles, max(1, tiles.rows // group), group


def _scale(heads: Heads) -> float:
    """The factor of scores, for weights that are powers of two."""
    return math.log2(math.e) * heads.width**-0.5


def _options(tiles: Tiles, *, fixed: bool) -> dict[str, int | bool]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": not fixed}


def _multiplied(dtype: torch.dtype) -> object:
    """Triton's name of the format of products; its interpreter cannot multiply bfloat16."""
    import triton.language as tl

    wide = dtype is torch.float32 or (dtype is torch.bfloat16 and kernels.interpreted())
    return tl.float32 if wide else {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
