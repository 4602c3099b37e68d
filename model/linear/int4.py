"""Weights in groups of 32 with a scale and maybe a minimum, int8 activations with a scale for each row and group.

Blocks of a quantized file that fit into such groups, of 4 or 8 bits, run as they are (see checkpoint/gguf/blocks.py),
and so does Q4_K where it has all parts of a projection.
All other matrices of that file are quantized to 8 bits. A checkpoint of floats is quantized to 4 bits with minima. All
parts of one projection get the narrowest layout that holds every part exactly.

The sums within a group are exact integers. The groups are added in float32, in order. A row's result therefore depends
on no other row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.checkpoint.gguf.blocks import inverse, quantize8
from model.checkpoint.matrices import (
    BlockMatrix,
    Blocks,
    EncodedMatrix,
    Matrix,
    common_form,
    in_form,
    parts,
)
from model.checkpoint.quantized.fp4 import Fp4Matrix
from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.groups import BLOCK_GROUP
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES


class Int4Linear(Compiled):
    """A projection with its weights in blocks."""

    scheme = SCHEMES["int4"]

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._parts: dict[int, list[Blocks]] = {}  # by first row, until all are there

    def store(self, first: int, rows: Matrix) -> None:
        self._parts[first] = _blocks(rows)
        if sum(len(piece) for part in self._parts.values() for piece in part) < self.n_out:
            return
        pieces = [piece for at in sorted(self._parts) for piece in self._parts.pop(at)]
        self.packed = _packed(self._kernels, pieces)


def _packed(kernels: Kernels, parts: Sequence[Blocks]) -> PackedWeights:
    """Pack these as one matrix, one above the other, in memory for the kernels."""
    if all(isinstance(piece, EncodedMatrix) and piece.is_superblocks for piece in parts):
        return _superblocks(kernels, parts)  # type: ignore[arg-type]
    n_bytes, with_minima = form = common_form(parts)
    weights = packed.blocks(sum(map(len, parts)), parts[0].shape[1], n_bytes, with_minima=with_minima)
    first = 0
    for piece in in_form(parts, form):
        kernels.pack(weights, first, piece.quants, piece.scales, piece.mins)
        first += len(piece)
    return weights


def _superblocks(kernels: Kernels, parts: Sequence[EncodedMatrix]) -> PackedWeights:
    """Pack matrices of Q4_K in the bits of the file. Products have the bits of `EncodedMatrix.blocks`."""
    weights = packed.superblocks(sum(map(len, parts)), parts[0].shape[1])
    first = 0
    for piece in parts:
        kernels.pack_superblocks(weights, first, piece.data)
        first += len(piece)
    return weights


def _blocks(rows: Matrix) -> list[Blocks]:
    """Return the rows in blocks. Groups of a file that can become blocks stay in the file until all rows are there.

    Raises ValueError for a value that is not finite: a scale or a minimum of its group is not either.
    """
    if not isinstance(rows, Tensor | Fp4Matrix) and rows.block_form() is not None:
        return [rows]
    quantize = quantize4 if isinstance(rows, Tensor) else quantize8
    found = [quantize(part.float()) for part in parts(rows)]
    for piece in found:
        piece.block_form()
    return list(found)


def quantize4(weight: Tensor) -> BlockMatrix:
    """Quantize weight [n, k] float32 to 4 bits: a group's minimum is its smallest value, its scale 1/15 of its range.

    Worked example: a group from -1.0 to 2.0 has minimum -1.0 and scale 0.2 (in float16); 0.5 becomes 8 and means 0.6.
    """
    groups = weight.unflatten(1, (-1, BLOCK_GROUP))
    smallest, largest = groups.aminmax(dim=2)
    mins, scales = smallest.half(), ((largest - smallest) / 15).half()
    steps = (groups - mins.float()[:, :, None]) * inverse(scales)[:, :, None]
    q = steps.round_().clamp_(0, 15).to(torch.uint8)
    return BlockMatrix(q[..., :16] | q[..., 16:] << 4, scales, mins)
