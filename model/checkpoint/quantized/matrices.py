"""Matrices of quantized safetensors: values with scales, and packed integers in groups."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from model.checkpoint.block_matrix import BlockMatrix, check_finite
from model.checkpoint.matrices import QuantizedMatrix
from model.kernels.groups import BLOCK_GROUP

Order = Literal["rows", "columns", "awq"]
AWQ_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
"""Which 4 bits of an int32, from the lowest, hold each of 8 neighbouring outputs (AWQ's gemm format)."""


@dataclass(frozen=True, slots=True)
class ScaledMatrix(QuantizedMatrix):
    """`values` [n_out, n_in] in fp8, int8 or floats; w = (value - zero) * scale.

    `scales` is [n_out, n_groups], None for floats without scales. `zeros` has its shape, None for zeros of 0. Each
    `group` neighbouring channels share a scale, and the last group may be smaller.
    """

    values: Tensor
    scales: Tensor | None = None
    group: int = 1
    zeros: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Tensor) -> "ScaledMatrix":
        return self.moved(lambda tensor: tensor[rows])

    def columns(self, columns: range) -> "ScaledMatrix":
        scales, zeros, group = self.scales, self.zeros, self.group
        if scales is not None:
            scales, group = _columns_of(scales, self.group, columns)
        if zeros is not None:
            zeros, _ = _columns_of(zeros, self.group, columns)
        values = self.values[:, columns.start : columns.stop]
        return replace(self, values=values, scales=scales, group=group, zeros=zeros)

    def moved(self, move: Callable[[Tensor], Tensor]) -> "ScaledMatrix":
        scales, zeros = (None if part is None else move(part) for part in (self.scales, self.zeros))
        return replace(self, values=move(self.values), scales=scales, zeros=zeros)

    def dequantize(self) -> Tensor:
        values = self.values.float()
        if self.zeros is not None:
            _grouped(values, self.zeros, self.group, Tensor.sub_)
        if self.scales is not None:
            _grouped(values, self.scales, self.group, Tensor.mul_)
        return check_finite(values)

    def block_form(self) -> tuple[int, bool] | None:
        return None if self._block_scales() is None else (BLOCK_GROUP, False)

    def blocks(self) -> BlockMatrix | None:
        scales = self._block_scales()
        return None if scales is None else BlockMatrix(self.values.unflatten(1, (-1, BLOCK_GROUP)), scales)

    def _block_scales(self) -> Tensor | None:
        if self.values.dtype is not torch.int8 or self.scales is None or self.zeros is not None:
            return None
        scales = _every_block(self.scales, self.group, self.shape[1])
        return None if scales is None else _half(scales)

    def by_row(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        if self.values.dtype is not dtype or self.scales is None or self.scales.shape[1] > 1 or self.zeros is not None:
            return None
        if dtype is torch.float8_e4m3fn and (self.values.view(torch.uint8) & 127).eq(127).any():
            raise ValueError("a value is not finite")
        return self.values, check_finite(self.scales[:, 0].float())


@dataclass(frozen=True, slots=True)
class PackedMatrix(QuantizedMatrix):
    """Unsigned integers of 4 or 8 `bits` in int32, from the lowest bits up; w = (q - zero) * scale.

    `order` "rows": `packed` [n_out, n_in * bits / 32] holds neighbouring channels together. "columns": the same
    transposed (GPTQ). "awq": [n_in, n_out / 8], with neighbouring outputs together in the order of `AWQ_PLACES`;
    `outputs` [n_out] then says which outputs these rows are.
    `scales` and `zeros` (uint8) are [n_out, n_groups]. A group has `group` neighbouring channels, or those that
    `channels` [n_in] assigns to it.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor
    n_in: int
    group: int
    bits: int = 4
    order: Order = "rows"
    channels: Tensor | None = None
    outputs: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.scales), self.n_in

    def __len__(self) -> int:
        return len(self.scales)

    def __getitem__(self, rows: slice | Tensor) -> "PackedMatrix":
        packed, outputs = self.packed, self.outputs
        if outputs is not None:
            outputs = outputs[rows]
        else:
            packed = packed[rows] if self.order == "rows" else packed[:, rows]
        return replace(self, packed=packed, outputs=outputs, scales=self.scales[rows], zeros=self.zeros[rows])

    @property
    def unit(self) -> int:
        return 1 if self.order == "awq" else 32 // self.bits

    def columns(self, columns: range) -> "PackedMatrix":
        words = slice(columns.start // self.unit, -(-columns.stop // self.unit))
        own = replace(
            self, packed=self.packed[:, words] if self.order == "rows" else self.packed[words], n_in=len(columns)
        )
        if self.channels is not None:
            return replace(own, channels=self.channels[columns.start : columns.stop])
        (scales, group), (zeros, _) = (_columns_of(table, self.group, columns) for table in (self.scales, self.zeros))
        return replace(own, scales=scales, zeros=zeros, group=group)

    def moved(self, move: Callable[[Tensor], Tensor]) -> "PackedMatrix":
        channels, outputs = (None if part is None else move(part) for part in (self.channels, self.outputs))
        return replace(
            self,
            packed=move(self.packed),
            scales=move(self.scales),
            zeros=move(self.zeros),
            channels=channels,
            outputs=outputs,
        )

    def integers(self) -> Tensor:
        """q, uint8 [n_out, n_in]."""
        if self.outputs is not None:
            return _awq_outputs(self.packed, self.outputs)
        rows = self.packed if self.order == "rows" else self.packed.T
        return unpack_words(rows, self.bits)[:, : self.n_in]

    def dequantize(self) -> Tensor:
        values = self.integers().float()
        scales, zeros, group = self.scales, self.zeros, self.group
        if self.channels is not None:
            scales, zeros, group = scales[:, self.channels], zeros[:, self.channels], 1
        _grouped(values, zeros, group, Tensor.sub_)
        _grouped(values, scales, group, Tensor.mul_)
        return check_finite(values)

    def block_form(self) -> tuple[int, bool] | None:
        tables = self._block_tables()
        return None if tables is None else (BLOCK_GROUP * self.bits // 8, tables[1] is not None)

    def blocks(self) -> BlockMatrix | None:
        tables = self._block_tables()
        if tables is None:
            return None
        q = self.integers().unflatten(1, (-1, BLOCK_GROUP))
        quants = q[..., :16] | q[..., 16:] << 4 if self.bits == 4 else (q ^ 128).view(torch.int8)
        return BlockMatrix(quants, *tables)

    def _block_tables(self) -> tuple[Tensor, Tensor | None] | None:
        """Scales and minima in float16 [n_out, n_in/32]; no minima if every zero is the middle of the range."""
        scales, zeros = (
            None if self.channels is not None else _every_block(table.float(), self.group, self.n_in)
            for table in (self.scales, self.zeros)
        )
        if scales is None or zeros is None:
            return None
        middle = 2 ** (self.bits - 1)
        if zeros.eq(middle).all():
            return _half(scales), None
        below = zeros if self.bits == 4 else zeros - middle
        return _half(scales), _half(scales * -below)

    def by_row(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        one_scale = self.scales.shape[1] == 1 and self.channels is None
        if dtype is not torch.int8 or self.bits != 8 or not one_scale or not self.zeros.eq(128).all():
            return None
        return (self.integers() ^ 128).view(torch.int8), check_finite(self.scales[:, 0].float())

    def four_bits(self, group: int) -> tuple[Tensor, Tensor, Tensor] | None:
        if self.bits != 4 or self.channels is not None or self.group % group or self.n_in % group:
            return None
        scales, zeros = (_spread(table, self.group // group, self.n_in // group) for table in (self.scales, self.zeros))
        shape = len(self), self.n_in // group
        return self.integers().unflatten(1, (-1, group)), check_finite(scales.expand(shape)), zeros.expand(shape)


def _columns_of(table: Tensor, group: int, columns: range) -> tuple[Tensor, int]:
    """A table [n_out, n_groups] for some channels, and the number of channels that now share an entry.

    Where the channels begin within a group, an entry stands for a smaller group. Worked example: channels 96..191 in
    groups of 64 are groups of 32, with the entries of groups 1, 2 and 2.
    """
    if table.shape[1] == 1:
        return table, len(columns)
    smaller = math.gcd(group, columns.start)
    return table[:, torch.arange(columns.start, columns.stop, smaller) // group], smaller


def unpack_words(packed: Tensor, bits: int) -> Tensor:
    """int32 [n, k] -> uint8 [n, k * 32 / bits], from the lowest bits up. Worked example: 0x21, 4 bits -> 1, 2, 0..."""
    octets = packed.contiguous().view(torch.uint8)  # the machine is little-endian, as the file is
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def awq_order(unpacked: Tensor) -> Tensor:
    """What `unpack_words` makes of AWQ's int32 [n, k/8], with the outputs [n, k] in their order."""
    return unpacked.unflatten(-1, (-1, 8))[..., AWQ_PLACES].flatten(-2)


def _awq_outputs(packed: Tensor, outputs: Tensor) -> Tensor:
    """packed [n_in, n_out/8] -> q uint8 [len(outputs), n_in]."""
    place = AWQ_PLACES.to(outputs.device)[outputs % 8]
    octets = packed.view(torch.uint8)[:, outputs // 8 * 4 + place // 2].T.contiguous()
    return octets >> (place % 2 * 4).to(torch.uint8)[:, None] & 15


def _grouped(values: Tensor, table: Tensor, group: int, apply: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Apply the table [n, n_groups] in place to values [n, n_in] float32, each entry to a group of channels."""
    n_in, table = values.shape[1], table.float()
    if group * table.shape[1] == n_in:
        apply(values.unflatten(1, (-1, group)), table[:, :, None])
    else:  # the last group is smaller
        apply(values, _spread(table, group, n_in))


def _spread(table: Tensor, group: int, n_in: int) -> Tensor:
    """[n, n_groups] -> [n, n_in], or [n, 1] if that is all."""
    return table if table.shape[1] == 1 else table.repeat_interleave(group, dim=1)[:, :n_in]


def _every_block(table: Tensor, group: int, n_in: int) -> Tensor | None:
    """[n, n_groups] -> [n, n_in/32]; None if a block of 32 channels would have two scales, or be cut."""
    if n_in % BLOCK_GROUP or (table.shape[1] > 1 and group % BLOCK_GROUP):
        return None
    return _spread(table, group // BLOCK_GROUP, n_in // BLOCK_GROUP).expand(-1, n_in // BLOCK_GROUP)


def _half(table: Tensor) -> Tensor:
    return check_finite(table.half())
