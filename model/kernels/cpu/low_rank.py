"""LoRA adapters in the layout of `lora` in linear.h, in bfloat16, and the rows of a step that use them."""

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.kernels.cpu.packed import padded
from model.kernels.cpu.records import CHANNELS, OUTPUTS, RANKS, floats, pointer, struct

LINE = 64
"""Bytes of a cache line, at which each matrix begins."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedLowRank:
    """A LoRA adapter's part of one projection. `begins` and `firsts` say which pairs of ranks a block of B has."""

    a: Tensor
    b: Tensor
    begins: Tensor
    firsts: Tensor
    record: Any

    @classmethod
    def of(cls, a: Tensor, b: Tensor, begins: Tensor, firsts: Tensor) -> "PackedLowRank":
        """Pack to a [rank/8, n_groups, 8, 32], b [pairs, 16, 2], begins [n_blocks + 1], firsts [n_blocks]."""
        at = {name: pointer(name, part, torch.bfloat16) for name, part in (("a", a), ("b", b))}
        at |= {name: pointer(name, part, torch.int32) for name, part in (("begins", begins), ("firsts", firsts))}
        record = struct("lora")(**at, rank=len(a) * RANKS, n_groups=a.shape[1], n_blocks=len(firsts))
        return cls(a, b, begins, firsts, record)

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for part in (self.a, self.b, self.begins, self.firsts))


def pack(a: Tensor, parts: Sequence[tuple[int, int, Tensor]]) -> PackedLowRank:
    """Pack a [ranks, n_in] and the parts of B: (first output, first rank, b [n, r]), in order, without overlaps.

    A block of 16 outputs has the ranks of all parts that it touches. Zeros stand where an output has no such rank.
    """
    n_blocks = padded(max(first + len(b) for first, _, b in parts), OUTPUTS) // OUTPUTS
    whole = pad(a.bfloat16(), (0, -a.shape[1] % CHANNELS, 0, -len(a) % RANKS))
    tiles = whole.unflatten(1, (-1, CHANNELS)).unflatten(0, (-1, RANKS)).transpose(1, 2).contiguous()
    dense = torch.zeros(n_blocks * OUTPUTS, len(whole), dtype=torch.bfloat16)
    for first, rank, b in parts:
        dense[first : first + len(b), rank : rank + b.shape[1]] = b
    runs = _runs(parts, n_blocks)
    blocks, least, end = (torch.tensor(column) for column in zip(*runs, strict=True))
    begins = pad(((end - least) // 2).repeat_interleave(blocks).cumsum(0), (1, 0))
    return PackedLowRank.of(tiles, _pairs(dense, runs), begins.int(), least.repeat_interleave(blocks).int())


def _runs(parts: Sequence[tuple[int, int, Tensor]], n_blocks: int) -> list[tuple[int, int, int]]:
    """Find runs of blocks of 16 outputs with the same ranks: their number, and the even ranks around these.

    Two parts may meet within a block. So a run ends at each block in which a part begins or ends, and after it.
    """
    spans = [(first, first + len(b), rank, rank + b.shape[1]) for first, rank, b in parts]
    edges = {edge // OUTPUTS for first, stop, _, _ in spans for edge in (first, stop - 1)}
    starts = sorted({0, *edges, *(edge + 1 for edge in edges)} - {n_blocks})
    runs = []
    for start, stop in zip(starts, [*starts[1:], n_blocks], strict=True):
        output = start * OUTPUTS
        there = [(rank, end) for first, last, rank, end in spans if first < output + OUTPUTS and output < last]
        least, end = min((rank for rank, _ in there), default=0), max((end for _, end in there), default=0)
        runs.append((stop - start, least // 2 * 2, padded(end, 2)))
    return runs


def _pairs(dense: Tensor, runs: Sequence[tuple[int, int, int]]) -> Tensor:
    """Pack `dense` [outputs, ranks], of each run of blocks between its ranks, block after block -> [pairs, 16, 2]."""
    found = []
    for rows, (blocks, least, end) in zip(dense.split([run[0] * OUTPUTS for run in runs]), runs, strict=True):
        tiles = rows[:, least:end].reshape(blocks, OUTPUTS, -1, 2).transpose(1, 2)
        found.append(tiles.reshape(-1, OUTPUTS, 2))
    return torch.cat(found)


def adjacent(products: Sequence[PackedLowRank]) -> list[PackedLowRank]:
    """Copy them to one piece of memory, in the order in which a step reads them, on large pages where Linux has them.

    A step reads every matrix once. Separate small pieces would cost more misses of address translation.
    """
    sizes = [padded(part.nbytes, LINE) for product in products for part in (product.a, product.b)]
    memory = mmap.mmap(-1, max(1, sum(sizes)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    pieces = iter(torch.frombuffer(memory, dtype=torch.uint8).split(sizes) if sizes else ())

    def moved(part: Tensor) -> Tensor:
        return next(pieces)[: part.nbytes].view(torch.bfloat16).view(part.shape).copy_(part)

    return [PackedLowRank.of(moved(one.a), moved(one.b), one.begins, one.firsts) for one in products]


class PackedTargets:
    """The entries of an adapter for some projections, in the kernels' order; `rank` is the greatest of their ranks."""

    def __init__(self, products: Sequence[PackedLowRank | None]) -> None:
        record = struct("lora")  # all zeros: nothing is added
        found = [record() if product is None else product.record for product in products]
        self.records = (record * len(found))(*found)
        self.rank = max(record.rank for record in found)


class PackedRows:
    """The rows of a step that use adapters: for each adapter its targets, and its rows [n] int64."""

    def __init__(self, runs: Sequence[tuple[PackedTargets, Tensor]]) -> None:
        sizes = [targets.rank * len(rows) for targets, rows in runs]
        pieces = torch.empty(sum(sizes), dtype=torch.float32, device="cpu").split(sizes)
        self._owners = (runs, pieces)  # keep alive the memory that the records point to
        record = struct("lora_rows")
        self.records = (record * len(runs))(
            *(
                record(
                    targets=ctypes.addressof(targets.records),
                    rows=pointer("rows", rows, torch.int64),
                    u=floats("u", u),
                    n_rows=len(rows),
                )
                for (targets, rows), u in zip(runs, pieces, strict=True)
            )
        )
