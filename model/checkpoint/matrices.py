"""Matrices of a checkpoint: rows of bytes, decoded only where a scheme needs floats, and those of all experts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from model.checkpoint.block_matrix import BlockMatrix
from model.checkpoint.gguf.blocks import EncodedMatrix
from model.kernels.groups import BLOCK_GROUP
from model.sharding.shard import Part

VALUES_AT_ONCE = 2**18
"""Values that are decoded or quantized at once: float32 copies then take 1 MiB, which the cache of a core holds."""


class QuantizedMatrix(ABC):
    """A matrix of quantized safetensors. A scheme takes its integers where it can store them, else its floats."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix: (n_out, n_in)."""

    @abstractmethod
    def __len__(self) -> int:
        """n_out."""

    @abstractmethod
    def __getitem__(self, rows: slice | Tensor) -> "QuantizedMatrix":
        """Some rows, in any order."""

    @property
    def unit(self) -> int:
        """`columns` takes multiples of so many channels."""
        return 1

    @abstractmethod
    def columns(self, columns: range) -> "QuantizedMatrix":
        """Some neighbouring input channels."""

    @abstractmethod
    def dequantize(self) -> Tensor:
        """float32 [n_out, n_in]: each value times its scale, in float32. Raises ValueError if one is not finite."""

    @abstractmethod
    def moved(self, move: Callable[[Tensor], Tensor]) -> "QuantizedMatrix":
        """The matrix with each of its tensors moved, such as to a GPU."""

    def block_form(self) -> tuple[int, bool] | None:
        """What `blocks` would have: bytes of integers in a block, and whether minima; None where it is None.

        Raises ValueError if a scale or a minimum is not finite in float16.
        """
        return None

    def blocks(self) -> BlockMatrix | None:
        """The same integers in blocks of 32 with scales and minima in float16; None where that is not possible."""
        return None

    def by_row(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Values [n_out, n_in] of this type, int8 or fp8, and scales [n_out] float32; None for any other matrix.

        Raises ValueError for a value or a scale that is not finite.
        """
        return None

    def four_bits(self, group: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """q uint8 [n_out, n_in/group, group], scales and zeros [n_out, n_in/group]; None for any other matrix.

        w = (q - zero) * scale.
        """
        return None


Matrix = Tensor | BlockMatrix | EncodedMatrix | QuantizedMatrix
M = TypeVar("M", bound=Matrix)


def cut(matrix: Matrix, part: Part) -> Matrix:
    """A part of the matrix: of a tensor that is mapped from a file, only the part is read.

    Columns that cut a unit of the format come as float32: a scheme that keeps units has no such widths.
    """
    if part.rows is not None:
        matrix = matrix[part.rows.start : part.rows.stop]
    if isinstance(matrix, Tensor):
        columns = slice(None) if part.columns is None else slice(part.columns.start, part.columns.stop)
        return matrix[:, columns].contiguous() if matrix.dim() > 1 else matrix
    if part.columns is None:
        return matrix
    first, stop, unit = part.columns.start, part.columns.stop, matrix.unit
    whole = range(first // unit * unit, min(-(-stop // unit) * unit, matrix.shape[1]))
    found = matrix.columns(whole)
    return found if whole == part.columns else found.dequantize()[:, first - whole.start : stop - whole.start]


def parts(rows: Matrix) -> Iterator[Tensor]:
    """The matrix in the pieces of `pieces` [n, n_in]; quantized rows are decoded to float32."""
    for part in pieces(rows):
        yield part if isinstance(part, Tensor) else part.dequantize()


def pieces(rows: M) -> Iterator[M]:
    """The matrix in pieces of whole rows, about `VALUES_AT_ONCE`, in its own format. A vector has width 1."""
    width = rows.shape[1] if len(rows.shape) > 1 else 1
    step = max(16, VALUES_AT_ONCE // width // 16 * 16)  # the CPU's kernels store 16 outputs together
    for first in range(0, len(rows), step):
        yield rows[first : first + step]  # type: ignore[misc]


Blocks = BlockMatrix | EncodedMatrix | QuantizedMatrix
"""A matrix in blocks, or one whose `block_form` is not None."""


def common_form(matrices: Sequence[Blocks]) -> tuple[int, bool]:
    """The narrowest form that holds all of these exactly: bytes of integers in a block, and whether minima.

    Each was checked when its `block_form` was first asked for: reading all scales twice takes 5 % of a load.
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
