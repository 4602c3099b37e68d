"""Products of dense weights and of experts, in any layout of layouts.py, where PyTorch is slower or has none.

A program computes `outputs` columns of y for `rows` rows of x. It reads bytes of weights as they are and makes numbers
of the model's format from them in registers. These are the left factor of the tensor cores' product (wgmma on 9.0), the
rows of x in shared memory the right one. Copies for the next steps are under way meanwhile.

Where this gives too few programs for a device, several of them share the channels. Each leaves its sums in memory. The
last to arrive adds all of them in the order of the channels: the order of arrival changes no bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.cuda import interpreted
from model.kernels.cuda.convert import e4m3, int4, to_fp8
from model.kernels.cuda.gate import silu
from model.kernels.cuda.layouts import DeviceWeights
from model.kernels.groups import INT4_GROUP

_PLAIN = tl.constexpr(interpreted())
"""The interpreter has no bfloat16 and no assembly: it computes in float32."""
_GROUP, _HALF = tl.constexpr(INT4_GROUP), tl.constexpr(INT4_GROUP // 2)


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of a program: `rows` of x by `outputs`, with `channels` in a step, `stages` of copies and computing."""

    rows: int
    outputs: int
    channels: int
    warps: int
    stages: int


MOST_ROWS = 128
"""Rows of the greatest tiles."""
TILES: Mapping[str, tuple[Tile, ...]] = {
    "plain": (Tile(16, 64, 128, 4, 4), Tile(64, 128, 64, 8, 3), Tile(MOST_ROWS, 128, 64, 8, 3)),
    "fp8": (Tile(16, 64, 256, 4, 4), Tile(64, 128, 128, 8, 3), Tile(MOST_ROWS, 128, 64, 8, 3)),
    "int4": (Tile(16, 64, 256, 4, 4), Tile(64, 128, 128, 8, 3), Tile(MOST_ROWS, 128, 64, 8, 3)),
}
"""Tiles of each layout, for up to `rows` rows; the last serves more. All fit into the shared memory of every GPU from
8.0 on (limits.py). They are not tuned on a device yet."""
GATED_STAGES = 3
"""Stages of a gated product at most: gate and up take twice the memory."""
GATED_INT4 = 64
"""Outputs of its tiles in int4 at most: on 10.0 the sums and the numbers of int4 share 512 columns of tensor memory."""
FIXED = 64
"""Rows of the tile that serves any number of rows."""
FIXED_ROWS = 512
"""Rows that a launch with fixed tiles computes: what programs leave for each other stays small."""
WARPS = 1024
"""Warps that keep a device busy. With fewer, several programs share the channels."""


def tile_of(layout: str, n_rows: int, *, fixed: bool) -> Tile:
    """Return the smallest tile that holds `n_rows`."""
    tiles = TILES[layout]
    return next((tile for tile in tiles if tile.rows >= (FIXED if fixed else n_rows)), tiles[-1])


def fitting(tile: Tile, layout: str, *, gated: bool) -> Tile:
    """Return the tile with as many outputs as the tensor memory holds."""
    return replace(tile, outputs=min(tile.outputs, GATED_INT4)) if gated and layout == "int4" else tile


def splits_of(tile: Tile, n_blocks: int, n_out: int, n_in: int) -> int:
    """Return how many programs share the channels of one block of rows and outputs: a power of two, at most 8."""
    warps = n_blocks * triton.cdiv(n_out, tile.outputs) * tile.warps
    splits = 1
    while splits < 8 and splits * warps < WARPS and splits * 4 * tile.channels <= n_in:
        splits *= 2
    return splits


def channels_of(layout: str, tile: Tile, dtype: torch.dtype) -> int:
    """Return the channels in a step: half in float32, whose x takes twice the memory, but a whole group in int4."""
    if dtype is not torch.float32:
        return tile.channels
    return max(tile.channels // 2, INT4_GROUP if layout == "int4" else 1)


@triton.jit
def _rows_of_x(x, at, there, k, n_in, EVEN: tl.constexpr):
    """Load channels k [K] of the rows that begin `at` [ROWS] -> [K, ROWS], zeros outside of x."""
    mask = there[None, :]
    if not EVEN:
        mask = mask & (k < n_in)[:, None]
    tile = tl.load(x + at[None, :] + k[:, None], mask=mask, other=0.0)
    return tile.to(tl.float32) if _PLAIN else tile


@triton.jit
def _add(sums, values, row, k, n_in, tile, DTYPE: tl.constexpr, LAYOUT: tl.constexpr, EVEN: tl.constexpr):
    """Add to sums [OUTPUTS, ROWS] channels k [K] of rows that begin at `row` [OUTPUTS], times `tile` [K, ROWS] of x."""
    at = values + row[:, None] + k[None, :]
    if EVEN:
        weights = tl.load(at)
    else:
        weights = tl.load(at, mask=(k < n_in)[None, :], other=0)
    if LAYOUT == "fp8":
        weights = weights.to(DTYPE, bitcast=True) if tl.float8e4nv == DTYPE else e4m3(weights, DTYPE)
    if _PLAIN:
        weights = weights.to(tl.float32)
    if LAYOUT != "fp8":
        return tl.dot(weights, tile, sums, input_precision="ieee")
    # Triton overwrites converted weights while an unfinished product reads them, if products wait for each other's sums
    # (triton#9433, ADR 11). An fma is not folded back into the product, as an addition is.
    return tl.fma(tl.dot(weights, tile, input_precision="ieee"), 1.0, sums)


@triton.jit
def _add_group(sums, values, scales, zeros, row, n, group, low, high, n_total, DTYPE: tl.constexpr):
    """Add one group of channels in int4 to sums [OUTPUTS, ROWS]; low and high [32, ROWS] are of x."""
    packed = tl.load(values + row[:, None] + group * _HALF + tl.arange(0, _HALF)[None, :])
    zero = tl.load(zeros + group * n_total + n)[:, None]
    scale = tl.load(scales + group * n_total + n)[:, None]
    sums = tl.dot(int4(packed, zero, scale, DTYPE, False), low, sums, input_precision="ieee")
    return tl.dot(int4(packed, zero, scale, DTYPE, True), high, sums, input_precision="ieee")


@triton.jit
def _sums(
    x, at, there, values, scales, zeros, n, begin, stop, n_in, width, n_out, n_total,
    LAYOUT: tl.constexpr, GATED: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Multiply channels begin..stop-1 of rows n of the weights with x -> [OUTPUTS, ROWS]; if GATED, also n + n_out.

    Without a layout that applies them here, they have no scales of the weights.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    ups = tl.zeros((OUTPUTS, ROWS), tl.float32)
    row = n.to(tl.int64) * width
    up = values + n_out.to(tl.int64) * width
    half = tl.arange(0, _HALF)
    for first in range(begin, stop, CHANNELS):
        if LAYOUT == "int4":
            for i in tl.static_range(CHANNELS // _GROUP):
                group = first // _GROUP + i
                k = group * _GROUP + half
                low, high = _rows_of_x(x, at, there, k, n_in, EVEN), _rows_of_x(x, at, there, k + _HALF, n_in, EVEN)
                if not EVEN:
                    group = tl.minimum(group, n_in // _GROUP - 1)
                sums = _add_group(sums, values, scales, zeros, row, n, group, low, high, n_total, dtype)
                if GATED:
                    ups = _add_group(ups, up, scales + n_out, zeros + n_out, row, n, group, low, high, n_total, dtype)
        else:
            k = first + tl.arange(0, CHANNELS)
            tile = _rows_of_x(x, at, there, k, n_in, EVEN)
            sums = _add(sums, values, row, k, n_in, tile, dtype, LAYOUT, EVEN)
            if GATED:
                ups = _add(ups, up, row, k, n_in, tile, dtype, LAYOUT, EVEN)
    return sums, ups


@triton.jit
def _exchange(sums, ups, parts, arrivals, mask, GATED: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr):
    """Add the sums of all programs that share these outputs and rows, in order; return whether this one is the last."""
    splits = tl.num_programs(2)
    size: tl.constexpr = OUTPUTS * ROWS * (2 if GATED else 1)
    block = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    at = tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    shared = parts + block.to(tl.int64) * splits * size + at
    mine = shared + tl.program_id(2) * size
    tl.store(mine, sums, mask=mask)
    if GATED:
        tl.store(mine + OUTPUTS * ROWS, ups, mask=mask)
    tl.debug_barrier()  # all threads have stored before one of them says so
    last = tl.atomic_add(arrivals + block, 1, sem="acq_rel") == splits - 1
    if last:
        tl.store(arrivals + block, 0)  # for the next launch
        sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
        ups = tl.zeros((OUTPUTS, ROWS), tl.float32)
        for split in range(splits):
            sums += tl.load(shared + split * size, mask=mask, other=0.0, cache_modifier=".cg")
            if GATED:
                ups += tl.load(shared + split * size + OUTPUTS * ROWS, mask=mask, other=0.0, cache_modifier=".cg")
    return sums, ups, last


@triton.jit
def _finish(
    sums, ups, scales, n, n_out, x_scales, source, there, onto, y, out, mask, LAYOUT: tl.constexpr, GATED: tl.constexpr
):  # fmt: skip
    """Store sums [OUTPUTS, ROWS] at `out` of y: with the scales of rows and outputs, gated, added to `onto`."""
    if x_scales is not None:
        factor = tl.load(x_scales + source, mask=there, other=0.0)[None, :]
        sums *= factor
        if GATED:
            ups *= factor
    if LAYOUT == "fp8":
        sums *= tl.load(scales + n)[:, None]
        if GATED:
            ups *= tl.load(scales + n_out + n)[:, None]
    if GATED:
        sums = silu(sums) * ups
    if onto is not None:
        sums += tl.load(onto + out, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + out, sums.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows"])
def _product(
    x, x_scales, values, scales, zeros, onto, y, slots, experts, parts, arrivals,
    n_rows, n_in, width, n_out, n_total, n_table, choices,
    LAYOUT: tl.constexpr, GATED: tl.constexpr, GROUPED: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the product in program (block of rows, block of outputs, split of the channels).

    The weights of an expert have n_total rows of `width` values, and tables of n_table entries. An up is n_out rows
    after its gate.
    """
    first = tl.program_id(1) * OUTPUTS
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    weight_row, table = first.to(tl.int64), first.to(tl.int64)
    if GROUPED:
        expert = tl.load(experts + tl.program_id(0)).to(tl.int64)
        if expert < 0:
            return
        slot = tl.load(slots + slot)
        there = slot >= 0
        source = slot // choices
        weight_row += expert * n_total
        table += expert * n_table
    else:
        there = slot < n_rows
        source = slot
    if LAYOUT != "plain":
        scales += table
    if LAYOUT == "int4":
        zeros += table
    at = source.to(tl.int64) * n_in
    n = tl.minimum(tl.arange(0, OUTPUTS), n_out - 1 - first)
    each = tl.cdiv(tl.cdiv(n_in, CHANNELS), tl.num_programs(2)) * CHANNELS
    begin = tl.program_id(2) * each
    sums, ups = _sums(
        x, at, there, values + weight_row * width, scales, zeros, n, begin, tl.minimum(begin + each, n_in), n_in, width,
        n_out, n_total, LAYOUT, GATED, EVEN, ROWS, OUTPUTS, CHANNELS,
    )  # fmt: skip
    column = first + tl.arange(0, OUTPUTS)[:, None]
    mask = there[None, :] & (column < n_out)
    if not GROUPED:  # noqa: SIM102 (known at compile time)
        if tl.num_programs(2) > 1:
            sums, ups, last = _exchange(sums, ups, parts, arrivals, mask, GATED, OUTPUTS, ROWS)
            mask = mask & last
    out = slot.to(tl.int64)[None, :] * n_out + column  # [OUTPUTS, ROWS]
    _finish(sums, ups, scales, n, n_out, x_scales, source, there, onto, y, out, mask, LAYOUT, GATED)


def product(
    x: Tensor, weights: DeviceWeights, *, gated: bool = False, onto: Tensor | None = None, fixed: bool = False
) -> Tensor:
    """Compute x W^T: [T, n_in] -> [T, n_out] in the format of x; with `onto` [T, n_out] add it to that in place.

    With `gated` the result is silu(x G^T) * (x U^T) [T, n_out/2], where G is the weights' upper half and U the lower.
    With `fixed` every T uses the same tile, and the channels are shared alike.
    """
    tile = fitting(tile_of(weights.layout, len(x), fixed=fixed), weights.layout, gated=gated)
    n_out = weights.n_out // (2 if gated else 1)
    y = x.new_empty(len(x), n_out) if onto is None else onto
    for rows, out in zip(x.split(FIXED_ROWS), y.split(FIXED_ROWS), strict=True) if fixed else ((x, y),):
        n_blocks = triton.cdiv(len(rows), tile.rows)
        splits = splits_of(tile, 1 if fixed else n_blocks, n_out, weights.n_in)
        _launch(rows, weights, out, tile, n_blocks, splits, None if onto is None else out, gated=gated)
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
    narrow: bool = False,
) -> Tensor:
    """Multiply the row of x of each (token, choice) pair with the weights of its expert -> [n_pairs, n_out].

    `weights` are those of all experts, with one more axis. Block i of `tile.rows` slots belongs to expert experts[i]
    (-1: to none). Slots hold pairs (-1: none). Pair p uses row p // choices of x. With `some`, the blocks do not have
    all pairs: the rows of the others are zeros. With `narrow` x is rounded to fp8, in which the tensor cores multiply.
    """
    y = (x.new_zeros if some else x.new_empty)(n_pairs, weights.n_out // (2 if gated else 1))
    x, x_scales = to_fp8(x) if narrow else (x, None)
    tile = fitting(tile, weights.layout, gated=gated)
    _launch(x, weights, y, tile, len(experts), 1, None, slots, experts, choices, x_scales, gated=gated)
    return y


def _launch(
    x: Tensor,
    weights: DeviceWeights,
    y: Tensor,
    tile: Tile,
    n_blocks: int,
    splits: int,
    onto: Tensor | None = None,
    slots: Tensor | None = None,
    experts: Tensor | None = None,
    choices: int = 1,
    x_scales: Tensor | None = None,
    *,
    gated: bool,
) -> None:
    n_in, n_out = weights.n_in, y.shape[1]
    scales, zeros = (*weights.tables, None, None)[:2]
    n_table = weights.n_out * (n_in // INT4_GROUP if weights.layout == "int4" else 1)
    channels = channels_of(weights.layout, tile, x.dtype)
    columns = triton.cdiv(n_out, tile.outputs)
    size = n_blocks * columns * splits * tile.rows * tile.outputs * (2 if gated else 1) if splits > 1 else 0
    parts = x.new_empty(size, dtype=torch.float32)
    _product[(n_blocks, columns, splits)](
        x.contiguous(), x_scales, weights.bytes, scales, zeros, onto, y, slots, experts, parts, arrivals(x.device),
        len(x), n_in, weights.values.shape[-1], n_out, weights.n_out, n_table, choices,
        LAYOUT=weights.layout, GATED=gated, GROUPED=slots is not None, EVEN=n_in % channels == 0,
        ROWS=tile.rows, OUTPUTS=tile.outputs, CHANNELS=channels, num_warps=tile.warps,
        num_stages=min(tile.stages, GATED_STAGES) if gated else tile.stages,
    )  # fmt: skip


@cache
def arrivals(device: torch.device) -> Tensor:
    """Return counts of the programs that left their sums, for each block of rows and outputs; 0 between launches."""
    return torch.zeros(WARPS * FIXED_ROWS // FIXED, dtype=torch.int32, device=device)
