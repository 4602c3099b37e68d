"""Weights in groups of 32 with a scale and maybe a minimum, int8 activations with a scale for each row and group.

Blocks of a quantized file that fit into such groups, of 4 or 8 bits, run as they are (see checkpoint/gguf/blocks.py),
and so does Q4_K where it has all parts of a projection.
All other matrices of that file are quantized to 8 bits. A checkpoint of floats is quantized to 4 bits with minima. All
parts of one projection get the narrowest layout that holds every part exactly.

The sums within a group are exact integers. The groups are added in float32, in order. A row's result therefore depends
on no other row.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model.checkpoint.blocks import BlockForm, Blocks, inverse, joined, quantize8, widest
from model.checkpoint.gguf.blocks import form_of
from model.checkpoint.stored import Stored
from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.groups import BLOCK_GROUP
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES


class Part(NamedTuple):
    """Some rows of a projection: their number and form, their pieces, and the rows that are still as in the file."""

    n_out: int
    form: BlockForm
    pieces: Iterable[Blocks]
    rows: Stored | None = None


class Int4Linear(Compiled):
    """A projection with its weights in blocks."""

    scheme = SCHEMES["int4"]

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._parts: dict[int, Part] = {}  # by first row, until all are there

    def store(self, first: int, rows: Stored) -> None:
        self._parts[first] = _part(rows)
        if sum(part.n_out for part in self._parts.values()) == self.n_out:
            parts = [self._parts.pop(at) for at in sorted(self._parts)]
            stored = [part.rows for part in parts if part.rows is not None and part.rows.is_superblocks]
            is_q4_k = len(stored) == len(parts)
            self.packed = _superblocks(self._kernels, stored) if is_q4_k else _packed(self._kernels, self.n_in, parts)


def _part(rows: Stored) -> Part:
    """Return the rows in blocks. Those of GGUF that are decoded stay in the file until all rows are there.

    Raises ValueError for a value that is not finite: a scale or a minimum of its group is not either.
    """
    pieces = (_blocks(piece) for piece in ([rows] if rows.is_blocks else rows.pieces()))
    if rows.layout == "gguf" and not rows.is_blocks:
        return Part(len(rows), form_of(rows.kind), pieces, rows)
    found = list(pieces)
    return Part(len(rows), widest(piece.form for piece in found), found)


def _blocks(piece: Stored) -> Blocks:
    """Return the file's blocks, or quantize to 4 bits in a checkpoint of floats, else to 8."""
    if (own := piece.blocks()) is not None:
        return own
    quantize = quantize4 if piece.layout == "floats" else quantize8
    return quantize(piece.floats().float()).checked()


def _packed(kernels: Kernels, n_in: int, parts: Sequence[Part]) -> PackedWeights:
    """Pack these as one matrix, one above the other."""
    n_out, form, first = sum(part.n_out for part in parts), widest(part.form for part in parts), 0
    weights = packed.blocks(n_out, n_in, form[0], with_minima=form[1])
    for piece in (piece.in_form(form) for part in parts for piece in part.pieces):
        kernels.pack(weights, first, piece.quants, piece.scales, piece.mins)
        first += len(piece)
    return weights


def _superblocks(kernels: Kernels, parts: Sequence[Stored]) -> PackedWeights:
    """Pack matrices of Q4_K in the bits of the file. Products have the bits of `Stored.blocks`."""
    weights, first = packed.superblocks(sum(map(len, parts)), parts[0].shape[1]), 0
    for part in parts:
        kernels.pack_superblocks(weights, first, part.values)
        first += len(part)
    return weights


def quantize4(weight: Tensor) -> Blocks:
    """Quantize weight [n, k] float32 to 4 bits: a group's minimum is its smallest value, its scale 1/15 of its range.

    Worked example: a group from -1.0 to 2.0 has minimum -1.0 and scale 0.2 (in float16); 0.5 becomes 8 and means 0.6.
    """
    groups = weight.unflatten(1, (-1, BLOCK_GROUP))
    smallest, largest = groups.aminmax(dim=2)
    mins, scales = smallest.half(), ((largest - smallest) / 15).half()
    steps = (groups - mins.float()[:, :, None]) * inverse(scales)[:, :, None]
    q = steps.round_().clamp_(0, 15).to(torch.uint8)
    return Blocks(joined(q), scales, mins)
