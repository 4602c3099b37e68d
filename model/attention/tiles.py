"""Sizes of the programs of Triton attention, and of the memory between them, by GPU and heads."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from model.attention.inputs import Span
from model.kernels.cuda.limits import shared_bytes

SHORT = 16
"""The greatest number of tokens of a slice whose keys are split into parts."""
SPLIT, FAN = 128, 16
"""Keys in a part; parts in a group, and groups in a batch. Parts begin at multiples of SPLIT, which is a multiple of
every `Tiles.keys` and of the page size. The order of sums, and so the bits of an answer, follow from both numbers."""
PROGRAMS = 5
"""Programs of short slices for each multiprocessor that keep a GPU busy: about three run at a time."""


WHOLE = {
    (2, 64): (128, 64, 4),
    (2, 128): (128, 64, 8),
    (2, 256): (64, 32, 4),
    (4, 64): (64, 32, 4),
    (4, 256): (16, 16, 4),
}
"""Rows, keys and warps of tiles of longer slices, by bytes of a multiplied value and greatest head_dim."""
BLOCK = 16 * 1024
"""Bytes of the keys and values of a block of short slices, once they are in the format of products."""
ITEM_BYTES = 64


class Gpu(NamedTuple):
    """What a program's sizes depend on: the compute capability, and the number of streaming multiprocessors."""

    capability: tuple[int, int]
    n_sms: int


class Tiles(NamedTuple):
    """Sizes of a program.

    `rows` is the smallest number of rows of a tile; a row is a query and a head of its group. `keys` is the number of
    keys in a pass of the loop. `warps` and `stages` are Triton's: stages - 1 blocks of keys are fetched ahead.
    """

    rows: int
    keys: int
    warps: int
    stages: int

    def queries(self, heads: "Heads") -> int:
        """The number of queries in a tile."""
        return max(1, self.rows // heads.members)


class Heads(NamedTuple):
    """Sizes for which kernels are compiled: query heads, key heads, head_dim, and head_dim rounded up."""

    n_heads: int
    n_kv: int
    width: int
    padded: int

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv

    @property
    def members(self) -> int:
        """The rows of a query in a tile."""
        return power(self.group)


class Load(NamedTuple):
    """The short slices of a step: their number, tokens, greatest number of tokens, parts, and parts times tokens."""

    n_slices: int
    n_tokens: int
    max_queries: int
    n_parts: int
    n_rows: int


class Room(NamedTuple):
    """Sizes of what is between `attend_parts` and `join`: items of work, and sums of a query over an item."""

    n_items: int
    n_rows: int

    def scratch_bytes(self, heads: Heads) -> int:
        """Bytes of the items, and of top, total and sums in float32."""
        return self.n_items * ITEM_BYTES + self.n_rows * heads.n_heads * (heads.width + 2) * 4


def power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def tiles_of(kind: Literal["parts", "whole"], gpu: Gpu, padded: int, itemsize: int, kv_itemsize: int) -> Tiles:
    """Tiles of short slices or of longer ones. `itemsize` is of a multiplied value, `kv_itemsize` of a stored one."""
    if kind == "whole":
        rows, keys, warps = next(sizes for (size, width), sizes in WHOLE.items() if size == itemsize and width >= padded)
        return Tiles(rows, keys, warps, 3)
    keys = min(64, max(16, BLOCK // (2 * padded * itemsize)))
    block = 2 * keys * padded * kv_itemsize
    ahead = min(4, max(2, shared_bytes(gpu.capability) // 3 // block))
    return Tiles(16, keys, 4 if padded * itemsize < 1024 else 8, ahead + 1)


def load_of(spans: Iterable[Span]) -> Load:
    """The short slices among these. Each part that is partly visible counts."""
    short = [span for span in spans if span.n_queries <= SHORT]
    parts = [(span.start + span.n_queries - 1) // SPLIT - span.first_key // SPLIT + 1 for span in short]
    queries = [span.n_queries for span in short]
    n_rows = sum(n * m for n, m in zip(parts, queries, strict=True))
    return Load(len(short), sum(queries), max(queries, default=0), sum(parts), n_rows)


def room(load: Load, gpu: Gpu, n_kv: int, n_tiles: int) -> Room:
    """Items and sums of a step: no more than keep the GPU busy, or than two for each slice, or than there are parts.

    `n_tiles` is the number of tiles of the greatest number of queries.
    """
    busy = gpu.n_sms * PROGRAMS
    items = max(-(-busy // (n_kv * n_tiles)), 2 * load.n_slices)
    rows = max(-(-busy // n_kv) * load.max_queries, 2 * load.n_tokens)
    return Room(min(items, load.n_parts), min(rows, load.n_rows))
