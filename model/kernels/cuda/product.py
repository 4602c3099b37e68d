"""Products of few rows, dense and grouped by expert. Memory limits their speed. Weights have any layout of layouts.py.

A program computes `outputs` columns of y for `rows` rows of x. The channels of a step are divided into `parts`, one for
each warp, whose sums are joined in order at the end. This division depends on the tile alone: if one tile serves any
number of rows (`fixed`), a row's bits depend on no other row.

The weights are the left factor of the tensor cores' product, because a tile then needs only 8 rows of x. Bytes go to
shared memory as they are and become the model's format in registers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.cuda import interpreted
from model.kernels.cuda.gate import silu
from model.kernels.cuda.layouts import DeviceWeights
from model.kernels.groups import INT4_GROUP

_PLAIN = tl.constexpr(interpreted())
"""The interpreter has no bfloat16 and no assembly: it computes in float32."""


def nibbles(magic: int, shift: int) -> str:
    """PTX from 4 bytes to 4 numbers of 16 bits: `magic`, then half of each byte (with `shift` 4 its upper half).

    0x43 makes 128 + q in bfloat16, 0x64 makes 1024 + q in float16. The order of channels stays.
    """
    word = f"0x{magic:02x}{magic:02x}{magic:02x}{magic:02x}"
    return (
        f"{{ .reg .b32 t; shr.b32 t, $2, {shift}; and.b32 t, t, 0x0f0f0f0f; "
        f"prmt.b32 $0, t, {word}, 0x4140; prmt.b32 $1, t, {word}, 0x4342; }}"
    )


_BF16_LOW, _BF16_HIGH = tl.constexpr(nibbles(0x43, 0)), tl.constexpr(nibbles(0x43, 4))
_FP16_LOW, _FP16_HIGH = tl.constexpr(nibbles(0x64, 0)), tl.constexpr(nibbles(0x64, 4))
_GROUP, _HALF = tl.constexpr(INT4_GROUP), tl.constexpr(INT4_GROUP // 2)


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of a program: `rows` of x by `outputs`, with `channels` in a step, in `parts`, one for each warp."""

    rows: int
    outputs: int
    channels: int
    parts: int
    stages: int


TILES: Mapping[str, tuple[Tile, ...]] = {
    "plain": (Tile(8, 32, 256, 4, 4), Tile(16, 32, 256, 4, 3), Tile(32, 32, 256, 4, 3), Tile(64, 16, 256, 4, 3)),
    "fp8": (Tile(8, 32, 512, 4, 4), Tile(16, 32, 512, 4, 3), Tile(32, 32, 256, 4, 3), Tile(64, 16, 256, 4, 3)),
    "int8": (Tile(8, 32, 512, 4, 4), Tile(16, 32, 512, 4, 3), Tile(32, 32, 256, 4, 3), Tile(64, 16, 256, 4, 3)),
    "int4": (Tile(8, 32, 512, 4, 4), Tile(16, 32, 512, 4, 3), Tile(32, 32, 512, 4, 3), Tile(64, 16, 256, 4, 3)),
}
"""Tiles of each layout, for up to `rows` rows. Several programs with the last tile compute more rows. All tiles fit
into 99 KiB of shared memory, which every GPU from 8.0 on has. They are not tuned on a device yet."""
GATED_STAGES = 3
"""Stages of a gated product at most: gate and up take twice the memory."""
FIXED = 32
"""Rows of the tile that serves any number of rows."""


def tile_of(layout: str, n_rows: int, *, fixed: bool) -> Tile:
    """The smallest tile that holds `n_rows`."""
    tiles = TILES[layout]
    return next((tile for tile in tiles if tile.rows >= (FIXED if fixed else n_rows)), tiles[-1])


@triton.jit
def _rows_of_x(x, at, there, k, n_in, EVEN: tl.constexpr):
    """Channels k [PARTS, K] of the rows that begin `at` [ROWS] -> [PARTS, K, ROWS], zeros outside of x."""
    mask = there[None, None, :]
    if not EVEN:
        mask = mask & (k < n_in)[:, :, None]
    tile = tl.load(x + at[None, None, :] + k[:, :, None], mask=mask, other=0.0)
    if _PLAIN:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _weights(values, n, k, n_in, DTYPE: tl.constexpr, EVEN: tl.constexpr):
    """Channels k [PARTS, K] of rows n [OUTPUTS] -> [PARTS, OUTPUTS, K] in the format of x, without their scales."""
    at = values + n[None, :, None] * n_in + k[:, None, :]
    if EVEN:
        tile = tl.load(at)
    else:
        tile = tl.load(at, mask=(k < n_in)[:, None, :], other=0.0)
    if _PLAIN:
        tile = tile.to(tl.float32)
    elif values.dtype.element_ty == tl.float8e4nv:
        tile = tile.to(tl.float16)
        if tl.bfloat16 == DTYPE:
            tile = tile.to(tl.float32)  # a direct conversion takes the slow unit
    return tile.to(tl.float32 if _PLAIN else DTYPE)


@triton.jit
def _nibbles(packed, zeros, DTYPE: tl.constexpr, HIGH: tl.constexpr):
    """One half of each byte of packed [PARTS, OUTPUTS, 32], minus `zeros` [PARTS, OUTPUTS, 1], without rounding."""
    if _PLAIN or tl.float32 == DTYPE:
        values = (packed >> 4 if HIGH else packed & 15).to(tl.float32)
        zero = zeros.to(tl.float32)
    elif tl.bfloat16 == DTYPE:
        values = tl.inline_asm_elementwise(
            _BF16_HIGH if HIGH else _BF16_LOW, "=r,=r,r", [packed], dtype=tl.bfloat16, is_pure=True, pack=4
        )
        zero = (zeros.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
    else:
        values = tl.inline_asm_elementwise(
            _FP16_HIGH if HIGH else _FP16_LOW, "=r,=r,r", [packed], dtype=tl.float16, is_pure=True, pack=4
        )
        zero = (zeros.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
    return values - zero


@triton.jit
def _add_groups(sums, values, scales, zeros, n, group, low, high, n_in, n_total, DTYPE: tl.constexpr):
    """sums [PARTS, OUTPUTS, ROWS] plus one group of channels for each part; low and high [PARTS, 32, ROWS] are of x."""
    half = tl.arange(0, _HALF)
    at = n[None, :, None] * (n_in // 2) + (group * _HALF)[:, None, None] + half[None, None, :]
    packed = tl.load(values + at)  # [PARTS, OUTPUTS, 32]
    entry = group[:, None] * n_total + n[None, :]
    zero = tl.load(zeros + entry)[:, :, None]
    scale = tl.load(scales + entry).to(tl.float32)[:, :, None]
    part = tl.dot(_nibbles(packed, zero, DTYPE, False), low, input_precision="ieee")
    part = tl.dot(_nibbles(packed, zero, DTYPE, True), high, part, input_precision="ieee")
    return sums + part * scale


@triton.jit
def _sum_groups(
    x, at, there, values, scales, zeros, n, n_in, n_out, n_total,
    GATED: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """`_sum_channels` for weights in int4; a part has groups of its own."""
    dtype: tl.constexpr = x.dtype.element_ty
    each: tl.constexpr = CHANNELS // _GROUP // PARTS
    sums = tl.zeros((PARTS, OUTPUTS, ROWS), tl.float32)
    ups = tl.zeros((PARTS, OUTPUTS, ROWS), tl.float32)
    half = tl.arange(0, _HALF)[None, :]
    n_groups = n_in // _GROUP
    for first in range(0, n_groups, PARTS * each):
        for i in tl.static_range(each):
            group = first + tl.arange(0, PARTS) * each + i  # [PARTS]
            low = _rows_of_x(x, at, there, (group * _GROUP)[:, None] + half, n_in, EVEN)
            high = _rows_of_x(x, at, there, (group * _GROUP + _HALF)[:, None] + half, n_in, EVEN)
            if not EVEN:
                group = tl.minimum(group, n_groups - 1)
            sums = _add_groups(sums, values, scales, zeros, n, group, low, high, n_in, n_total, dtype)
            if GATED:
                up = values + n_out.to(tl.int64) * (n_in // 2)
                ups = _add_groups(ups, up, scales + n_out, zeros + n_out, n, group, low, high, n_in, n_total, dtype)
    return tl.sum(sums, axis=0), tl.sum(ups, axis=0)


@triton.jit
def _sum_channels(
    x, at, there, values, n, n_in, n_out,
    GATED: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Products [OUTPUTS, ROWS] of rows n of the weights with the rows of x. If GATED, also those of rows n + n_out."""
    dtype: tl.constexpr = x.dtype.element_ty
    sums = tl.zeros((PARTS, OUTPUTS, ROWS), tl.float32)
    ups = tl.zeros((PARTS, OUTPUTS, ROWS), tl.float32)
    each: tl.constexpr = CHANNELS // PARTS
    channels = tl.arange(0, PARTS)[:, None] * each + tl.arange(0, each)[None, :]
    for first in range(0, n_in, CHANNELS):
        k = first + channels
        tile = _rows_of_x(x, at, there, k, n_in, EVEN)
        sums = tl.dot(_weights(values, n, k, n_in, dtype, EVEN), tile, sums, input_precision="ieee")
        if GATED:
            up = values + n_out.to(tl.int64) * n_in
            ups = tl.dot(_weights(up, n, k, n_in, dtype, EVEN), tile, ups, input_precision="ieee")
    return tl.sum(sums, axis=0), tl.sum(ups, axis=0)


@triton.jit(do_not_specialize=["n_rows"])
def _product(
    x, values, scales, zeros, onto, y, slots, experts, n_rows, n_in, n_out, n_total, choices,
    LAYOUT: tl.constexpr, GATED: tl.constexpr, GROUPED: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Program (block of rows, block of outputs). The weights have n_total rows; an up is n_out rows after its gate."""
    first = tl.program_id(1) * OUTPUTS
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    weight_row = first.to(tl.int64)
    if GROUPED:
        expert = tl.load(experts + tl.program_id(0)).to(tl.int64)
        if expert < 0:
            return
        slot = tl.load(slots + slot)
        there = slot >= 0
        source = slot // choices
        weight_row += expert * n_total
    else:
        there = slot < n_rows
        source = slot
    at = source.to(tl.int64) * n_in
    n = tl.minimum(tl.arange(0, OUTPUTS), n_out - 1 - first)
    if LAYOUT == "int4":
        table = first.to(tl.int64)
        if GROUPED:
            table += expert * n_total * (n_in // _GROUP)
        sums, ups = _sum_groups(
            x, at, there, values + weight_row * (n_in // 2), scales + table, zeros + table, n, n_in, n_out, n_total,
            GATED, EVEN, ROWS, OUTPUTS, CHANNELS, PARTS,
        )  # fmt: skip
    else:
        sums, ups = _sum_channels(
            x, at, there, values + weight_row * n_in, n, n_in, n_out, GATED, EVEN, ROWS, OUTPUTS, CHANNELS, PARTS
        )
        if LAYOUT != "plain":
            sums *= tl.load(scales + weight_row + n)[:, None]
            if GATED:
                ups *= tl.load(scales + weight_row + n_out + n)[:, None]
    if GATED:
        sums = silu(sums) * ups
    column = first + tl.arange(0, OUTPUTS)[:, None]
    out = slot.to(tl.int64)[None, :] * n_out + column  # [OUTPUTS, ROWS]
    mask = there[None, :] & (column < n_out)
    if onto is not None:
        sums += tl.load(onto + out, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + out, sums.to(y.dtype.element_ty), mask=mask)


def product(
    x: Tensor, weights: DeviceWeights, *, gated: bool = False, onto: Tensor | None = None, fixed: bool = False
) -> Tensor:
    """x W^T: [T, n_in] -> [T, n_out] in the format of x; with `onto` [T, n_out] it is added to that in place.

    With `gated` the result is silu(x G^T) * (x U^T) [T, n_out/2], where G is the weights' upper half and U the lower.
    With `fixed` every T uses the same tile.
    """
    tile = tile_of(weights.layout, len(x), fixed=fixed)
    n_out = weights.n_out // (2 if gated else 1)
    y = x.new_empty(len(x), n_out) if onto is None else onto
    _launch(x, weights, y, tile, triton.cdiv(len(x), tile.rows), gated=gated, onto=onto)
    return y


def grouped(
    x: Tensor,
    weights: DeviceWeights,
    slots: Tensor,
    experts: Tensor,
    choices: int,
    tile: Tile,
    n_pairs: int,
    *,
    gated: bool,
    some: bool = False,
) -> Tensor:
    """The row of x of each (token, choice) pair, times the weights of its expert -> [n_pairs, n_out].

    `weights` are those of all experts, with one more axis. Block i of `tile.rows` slots belongs to expert experts[i]
    (-1: to none). Slots hold pairs (-1: none). Pair p uses row p // choices of x. With `some`, the blocks do not have
    all pairs: the rows of the others are zeros.
    """
    y = (x.new_zeros if some else x.new_empty)(n_pairs, weights.n_out // (2 if gated else 1))
    _launch(x, weights, y, tile, len(experts), gated=gated, slots=slots, experts=experts, choices=choices)
    return y


def _launch(
    x: Tensor,
    weights: DeviceWeights,
    y: Tensor,
    tile: Tile,
    n_blocks: int,
    *,
    gated: bool,
    onto: Tensor | None = None,
    slots: Tensor | None = None,
    experts: Tensor | None = None,
    choices: int = 1,
) -> None:
    n_in, n_out = weights.n_in, y.shape[1]
    scales, zeros = (*weights.tables, None, None)[:2]
    channels = tile.channels // (2 if x.dtype is torch.float32 else 1)
    _product[(n_blocks, triton.cdiv(n_out, tile.outputs))](
        x.contiguous(), weights.values, scales, zeros, onto, y, slots, experts,
        len(x), n_in, n_out, weights.n_out, choices,
        LAYOUT=weights.layout, GATED=gated, GROUPED=slots is not None, EVEN=n_in % channels == 0, ROWS=tile.rows,
        OUTPUTS=tile.outputs, CHANNELS=channels, PARTS=tile.parts, num_warps=tile.parts,
        num_stages=min(tile.stages, GATED_STAGES) if gated else tile.stages,
    )  # fmt: skip
