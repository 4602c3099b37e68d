"""A matrix of quantized safetensors: values or integers with scales, each for a group of channels."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.checkpoint.block_matrix import BlockMatrix, check_finite
from model.kernels.groups import BLOCK_GROUP

AWQ_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
"""Which 4 bits of an int32, from the lowest, hold each of 8 neighbouring outputs (AWQ's gemm format)."""


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """`values` [n_out, n_in]; w = (value - zero) * scale. A scheme takes the integers if it can store them.

    The values are fp8, floats, int8, or integers of 4 bits in uint8. `scales` is [n_out, n_groups], None for floats
    without scales. `zeros` has its shape, None for zeros of 0. Each `group` neighbouring channels share a scale, and
    the last group may be smaller; or `channels` [n_in] has the group of each channel.
    """

    values: Tensor
    scales: Tensor | None = None
    group: int = 1
    zeros: Tensor | None = None
    channels: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix: (n_out, n_in)."""
        return self.values.shape[0], self.values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Tensor) -> "QuantizedMatrix":
        """Select rows, in any order."""
        scales, zeros = (None if table is None else table[rows] for table in (self.scales, self.zeros))
        return replace(self, values=self.values[rows], scales=scales, zeros=zeros)

    def columns(self, columns: range) -> "QuantizedMatrix":
        """Select neighbouring input channels."""
        own = slice(columns.start, columns.stop)
        if self.channels is not None:
            return replace(self, values=self.values[:, own], channels=self.channels[own])
        group = self.group if self.scales is None else _group_of(self.scales, self.group, columns)
        scales, zeros = (
            None if table is None else _columns_of(table, self.group, columns) for table in (self.scales, self.zeros)
        )
        return replace(self, values=self.values[:, own], scales=scales, group=group, zeros=zeros)

    def moved(self, move: Callable[[Tensor], Tensor]) -> "QuantizedMatrix":
        """Move each tensor of the matrix, such as to a GPU."""
        others = (self.scales, self.zeros, self.channels)
        scales, zeros, channels = (None if part is None else move(part) for part in others)
        return QuantizedMatrix(move(self.values), scales, self.group, zeros, channels)

    def dequantize(self) -> Tensor:
        """Decode to float32 [n_out, n_in]: each value times its scale. Raises ValueError if one is not finite."""
        values = self.values.float()
        for table, apply in ((self.zeros, Tensor.sub_), (self.scales, Tensor.mul_)):
            if table is not None and self.channels is not None:
                apply(values, table.float()[:, self.channels])
            elif table is not None:
                _grouped(values, table, self.group, apply)
        return check_finite(values)

    def block_form(self) -> tuple[int, bool] | None:
        """Return the layout of `blocks`: bytes of integers in a block, and whether minima; None where it is None.

        Raises ValueError if a scale or a minimum is not finite in float16.
        """
        tables = self._block_tables()
        return None if tables is None else (BLOCK_GROUP // (2 if self._is_narrow else 1), tables[1] is not None)

    def blocks(self) -> BlockMatrix | None:
        """Return the same integers in blocks of 32 with scales and minima in float16; None where it is not possible."""
        tables = self._block_tables()
        if tables is None:
            return None
        q = self.values.unflatten(1, (-1, BLOCK_GROUP))
        return BlockMatrix(q[..., :16] | q[..., 16:] << 4 if self._is_narrow else q, *tables)

    @property
    def _is_narrow(self) -> bool:
        """Return whether the integers have 4 bits."""
        return self.values.dtype is torch.uint8

    def _block_tables(self) -> tuple[Tensor, Tensor | None] | None:
        """Return scales and minima in float16 [n_out, n_in/32]; no minima if every zero is the middle of the range."""
        if self.values.dtype not in (torch.int8, torch.uint8) or self.scales is None or self.channels is not None:
            return None
        n_in, scales = self.shape[1], self.scales.float()
        if n_in % BLOCK_GROUP or (scales.shape[1] > 1 and self.group % BLOCK_GROUP):
            return None  # a block of 32 channels would have two scales, or be cut
        n_blocks, a_group = n_in // BLOCK_GROUP, self.group // BLOCK_GROUP
        scales = _spread(scales, a_group, n_blocks).expand(-1, n_blocks)
        if self.zeros is None or (self._is_narrow and self.zeros.eq(8).all()):
            return check_finite(scales.half()), None
        zeros = _spread(self.zeros.float(), a_group, n_blocks)
        return check_finite(scales.half()), check_finite((scales * -zeros).half())

    def by_row(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return values [n_out, n_in] of this type, int8 or fp8, and scales [n_out] float32; None for any other matrix.

        Raises ValueError for a value or a scale that is not finite.
        """
        one_scale = self.scales is not None and self.scales.shape[1] == 1 and self.channels is None
        if self.values.dtype is not dtype or not one_scale or self.zeros is not None:
            return None
        if dtype is torch.float8_e4m3fn and (self.values.view(torch.uint8) & 127).eq(127).any():
            raise ValueError("a value is not finite")
        return self.values, check_finite(self.scales[:, 0].float())  # type: ignore[index]  # it has one

    def four_bits(self, group: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return q uint8 [n_out, n_in/group, group], scales and zeros [n_out, n_in/group]; None for any other matrix.

        w = (q - zero) * scale.
        """
        if not self._is_narrow or self.channels is not None or self.group % group or self.shape[1] % group:
            return None
        assert self.scales is not None, "integers have scales"
        assert self.zeros is not None, "integers of 4 bits have zeros"
        n_groups = self.shape[1] // group
        scales, zeros = (_spread(table, self.group // group, n_groups) for table in (self.scales, self.zeros))
        shape = len(self), n_groups
        return self.values.unflatten(1, (-1, group)), check_finite(scales.expand(shape)), zeros.expand(shape)


def _group_of(table: Tensor, group: int, columns: range) -> int:
    """Return the number of channels that share an entry of a table after `_columns_of`."""
    return len(columns) if table.shape[1] == 1 else math.gcd(group, columns.start)


def _columns_of(table: Tensor, group: int, columns: range) -> Tensor:
    """Return a table [n_out, n_groups] for some channels.

    Where the channels begin within a group, an entry stands for a smaller group. Worked example: channels 96..191 in
    groups of 64 are groups of 32, with the entries of groups 1, 2 and 2.
    """
    if table.shape[1] == 1:
        return table
    return table[:, torch.arange(columns.start, columns.stop, math.gcd(group, columns.start)) // group]


def unpack_words(packed: Tensor, bits: int) -> Tensor:
    """Unpack int32 [n, k] -> uint8 [n, k * 32 / bits], lowest bits first. Worked example: 0x21, 4 bits -> 1, 2, 0..."""
    octets = packed.contiguous().view(torch.uint8)  # the machine is little-endian, as the file is
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def awq_order(unpacked: Tensor) -> Tensor:
    """Put the outputs [n, k] that `unpack_words` makes of AWQ's int32 [n, k/8] in order."""
    return unpacked.unflatten(-1, (-1, 8))[..., AWQ_PLACES].flatten(-2)


def _grouped(values: Tensor, table: Tensor, group: int, apply: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Apply the table [n, n_groups] in place to values [n, n_in] float32, each entry to a group of channels."""
    n_in, table = values.shape[1], table.float()
    if group * table.shape[1] == n_in:
        apply(values.unflatten(1, (-1, group)), table[:, :, None])
    else:  # the last group is smaller
        apply(values, _spread(table, group, n_in))


def _spread(table: Tensor, group: int, n_in: int) -> Tensor:
    """Spread [n, n_groups] -> [n, n_in], or [n, 1] if that is all."""
    return table if table.shape[1] == 1 else table.repeat_interleave(group, dim=1)[:, :n_in]
