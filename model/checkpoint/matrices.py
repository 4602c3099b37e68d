"""Matrices of a checkpoint: rows of bytes, decoded only where a scheme needs floats, and those of all experts."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from model.checkpoint.block_matrix import BlockMatrix
from model.checkpoint.gguf.blocks import EncodedMatrix
from model.checkpoint.quantized.fp4 import Fp4Matrix
from model.checkpoint.quantized.matrices import QuantizedMatrix
from model.kernels.groups import BLOCK_GROUP
from model.sharding.shard import TensorPart

VALUES_AT_ONCE = 2**18
"""Values that are decoded or quantized at once: float32 copies then take 1 MiB, which the cache of a core holds."""
GPU_VALUES_AT_ONCE = 2**25
"""The same for what is in the memory of a GPU, where each piece takes a few launches."""

Matrix = Tensor | BlockMatrix | EncodedMatrix | QuantizedMatrix | Fp4Matrix
M = TypeVar("M", bound=Matrix)


def cut(matrix: Matrix, part: TensorPart) -> Matrix:
    """Cut out a part of the matrix: of a tensor that is mapped from a file, only the part is read.

    Columns that cut a block come as float32: a scheme that keeps blocks has no such widths.
    """
    if part.rows is not None:
        matrix = matrix[part.rows.start : part.rows.stop]
    if isinstance(matrix, Tensor):
        columns = slice(None) if part.columns is None else slice(part.columns.start, part.columns.stop)
        return matrix[:, columns].contiguous() if matrix.dim() > 1 else matrix
    if part.columns is None:
        return matrix
    if not isinstance(matrix, BlockMatrix | Fp4Matrix):
        return matrix.columns(part.columns)
    first, stop = part.columns.start, part.columns.stop
    blocks = range(first // BLOCK_GROUP * BLOCK_GROUP, min(-(-stop // BLOCK_GROUP) * BLOCK_GROUP, matrix.shape[1]))
    found = matrix.columns(blocks)
    return found if blocks == part.columns else found.dequantize()[:, first - blocks.start : stop - blocks.start]


def parts(rows: Matrix) -> Iterator[Tensor]:
    """Yield the matrix in the pieces of `pieces` [n, n_in]; quantized rows are decoded to float32."""
    for part in pieces(rows):
        yield part if isinstance(part, Tensor) else part.dequantize()


def pieces(rows: M) -> Iterator[M]:
    """Yield the matrix in pieces of whole rows, as many as fit at once, in its own format. A vector has width 1."""
    width = rows.shape[1] if len(rows.shape) > 1 else 1
    values = rows.values if isinstance(rows, QuantizedMatrix) else rows
    most = GPU_VALUES_AT_ONCE if isinstance(values, Tensor) and values.is_cuda else VALUES_AT_ONCE
    step = max(16, most // width // 16 * 16)  # the CPU's kernels store 16 outputs together
    for first in range(0, len(rows), step):
        yield rows[first : first + step]  # type: ignore[misc]


Blocks = BlockMatrix | EncodedMatrix | QuantizedMatrix
"""A matrix that can be cut into blocks of 32 channels with scales in float16."""


def common_form(matrices: Sequence[Blocks]) -> tuple[int, bool]:
    """Return the narrowest layout that holds all of these exactly: bytes of integers in a block, and whether minima.

    Each was checked when its `block_form` was first read: reading all scales twice takes 5 % of a load.
    """
    forms = [matrix.form if isinstance(matrix, BlockMatrix) else matrix.block_form() for matrix in matrices]
    return max(form[0] for form in forms if form), any(form[1] for form in forms if form)


def in_form(matrices: Sequence[Blocks], form: tuple[int, bool]) -> Iterator[BlockMatrix]:
    """Convert each matrix to blocks of this form. Blocks are used as they are, other matrices piece by piece."""
    for matrix in matrices:
        for piece in [matrix] if isinstance(matrix, BlockMatrix) else (part.blocks() for part in pieces(matrix)):
            assert piece is not None, "it has a form"
            if piece.quants.dtype is torch.uint8 and form[0] == BLOCK_GROUP:
                piece = BlockMatrix(piece.integers(), piece.scales, piece.mins)
            yield BlockMatrix(piece.quants, piece.scales, _minima(piece)) if form[1] else piece


def _minima(blocks: BlockMatrix) -> Tensor:
    return blocks.scales * -blocks.zero if blocks.mins is None else blocks.mins
