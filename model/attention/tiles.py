"""Sizes of the programs of Triton attention by GPU and heads, and of the memory between them.

The keys of a short slice are cut into items of work. Four sizes exist: part < group < section < whole. The plan takes
the smallest whose number of items and whose partial sums fit `Bounds`. The bounds depend on the GPU and on the number
of slices, not on the length of the sequences.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from model.attention.inputs import Span
from model.batch import SHORT
from model.kernels.cuda.attention import ITEM
from model.kernels.cuda.limits import shared_bytes

SPLIT, FAN = 128, 16
"""Keys in a part; parts in a group, and groups in a section. Parts begin at multiples of SPLIT, which is a multiple of
every `Tiles.keys` and of the page size. The order of sums, and so the bits of an answer, follow from both numbers."""
PROGRAMS = 5
"""Programs of short slices for each multiprocessor that keep a GPU busy: two or three run at a time."""
BLOCK = 16 * 1024
"""Bytes of the keys and values that a program of short slices multiplies in a pass of its loop."""
WHOLE = {
    (2, 128): (128, 64, 8),
    (2, 256): (64, 32, 4),
    (2, 512): (32, 16, 8),
    (4, 64): (64, 32, 4),
    (4, 256): (16, 16, 4),
    (4, 512): (16, 16, 8),
}
"""Rows, keys and warps of tiles of longer slices, by bytes of a multiplied value and greatest width of values."""

WIDE = 128 * 1024
"""Bytes of shared memory for two blocks of 32 keys of the widest heads, and their queries."""


class Gpu(NamedTuple):
    """The properties on which sizes depend: compute capability, and the number of streaming multiprocessors."""

    capability: tuple[int, int]
    n_sms: int


class KernelHeads(NamedTuple):
    """Sizes for which kernels are compiled: query heads, their groups, key heads, channels of keys and of values."""

    n_heads: int
    n_groups: int
    n_kv: int
    width: int
    value: int

    @property
    def group(self) -> int:
        return self.n_heads // self.n_groups

    @property
    def padded(self) -> int:
        return max(16, power(self.value))

    @property
    def turning(self) -> int:
        """Return the channels of keys that values do not have, rounded up."""
        return max(16, power(self.width - self.value))

    @property
    def members(self) -> int:
        """Return the rows of a query in a tile."""
        return power(self.group)


class Tiles(NamedTuple):
    """Sizes of a program.

    `rows` is the smallest number of rows of a tile; a row is a query and a head of its group. `keys` is the number of
    keys in a pass of the loop. `warps` and `stages` are Triton's: the loop fetches stages - 1 blocks of keys ahead.
    """

    rows: int
    keys: int
    warps: int
    stages: int

    def queries(self, heads: KernelHeads) -> int:
        """Return the number of queries in a tile."""
        return max(1, self.rows // heads.members)


class Load(NamedTuple):
    """The short slices of a step: their number, tokens, greatest number of tokens, parts, and parts times tokens."""

    n_slices: int
    n_tokens: int
    max_queries: int
    n_parts: int
    n_sums: int


class Bounds(NamedTuple):
    """How many items there may be, and how many sums: of a query over the keys of an item."""

    n_items: int
    n_sums: int

    def scratch_bytes(self, n_heads: int, width: int) -> int:
        """Return the bytes of the items, and of the sums: top, total and a vector for each head, in float32."""
        return self.n_items * ITEM * 8 + self.n_sums * n_heads * (width + 2) * 4


def power(n: int) -> int:
    """Return the least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def tiles_of(kind: Literal["parts", "whole"], gpu: Gpu, padded: int, itemsize: int, kv_itemsize: int) -> Tiles:
    """Return tiles of short or of longer slices. `itemsize` is of a multiplied value, `kv_itemsize` of a stored one."""
    shared, pair = shared_bytes(gpu.capability), 2 * padded * kv_itemsize
    if kind == "parts":
        keys = min(64, max(16, BLOCK // (2 * padded * itemsize)))
        ahead = min(4, max(2, shared // 3 // (keys * pair)))
        return Tiles(16, keys, 4 if padded * itemsize < 1024 else 8, ahead + 1)
    rows, keys, warps = next(sizes for (size, width), sizes in WHOLE.items() if size == itemsize and width >= padded)
    return Tiles(rows, 16 if padded * itemsize >= 512 and shared < WIDE else keys, warps, 3)


def load_of(spans: Iterable[Span]) -> Load:
    """Return the load of the short slices among these. Every part with a visible key counts."""
    short = [span for span in spans if span.n_queries <= SHORT]
    queries = [span.n_queries for span in short]
    parts = [(span.start + span.n_queries - 1) // SPLIT - span.first_key // SPLIT + 1 for span in short]
    n_sums = sum(n * m for n, m in zip(parts, queries, strict=True))
    return Load(len(short), sum(queries), max(queries, default=0), sum(parts), n_sums)


def bounds(load: Load, gpu: Gpu, n_kv: int, n_tiles: int) -> Bounds:
    """Return the items and sums that keep the GPU busy, or two for each slice, but no more than parts of all keys.

    `n_tiles` is the number of tiles of `load.max_queries` queries: an item has a program for each tile and key head.
    """
    busy = gpu.n_sms * PROGRAMS
    items = max(-(-busy // (n_kv * n_tiles)), 2 * load.n_slices)
    sums = max(-(-busy // n_kv) * load.max_queries, 2 * load.n_tokens)
    return Bounds(min(items, load.n_parts), min(sums, load.n_sums))


def scratch_bytes(n_slices: int, length: int, window: int | None, heads: tuple[int, int, int], gpu: Gpu) -> int:
    """Return the scratch of a step that decodes a token of each of `n_slices` sequences of `length` tokens.

    `heads` are n_heads, n_kv_heads and head_dim.
    """
    n_heads, n_kv, width = heads
    first = 0 if window is None else max(0, length - window)
    n_parts = n_slices * ((length - 1) // SPLIT - first // SPLIT + 1)
    return bounds(Load(n_slices, n_slices, 1, n_parts, n_parts), gpu, n_kv, 1).scratch_bytes(n_heads, width)
