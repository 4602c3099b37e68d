"""Conversions for PyTorch's products of many rows: x to fp8, and weights of layouts.py to the model's format."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.cuda.layouts import LARGEST, DeviceWeights
from model.kernels.groups import INT4_GROUP

_GROUP, _HALF, _LARGEST = tl.constexpr(INT4_GROUP), tl.constexpr(INT4_GROUP // 2), tl.constexpr(LARGEST)
ROWS, CHANNELS = 16, 128
"""The block of weights that one program converts."""


@triton.jit
def _to_fp8(x, values, scales, dim, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, WIDTH)
    there = channels < dim
    given = tl.load(x + row * dim + channels, mask=there, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(given), axis=0), 1e-12) / _LARGEST
    tl.store(values + row * dim + channels, (given / scale).to(tl.float8e4nv), mask=there)
    tl.store(scales + row, scale)


@triton.jit
def _widen(values, scales, out, n_rows, n_in, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Dequantize fp8 or int8; program (rows, channels)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = (rows < n_rows)[:, None] & (channels < n_in)[None, :]
    at = rows.to(tl.int64)[:, None] * n_in + channels[None, :]
    scale = tl.load(scales + rows, mask=rows < n_rows, other=0.0)[:, None]
    wide = tl.load(values + at, mask=there, other=0.0).to(tl.float32) * scale
    tl.store(out + at, wide.to(out.dtype.element_ty), mask=there)


@triton.jit
def _widen_groups(values, scales, zeros, out, n_rows, n_in, n_total, ROWS: tl.constexpr):
    """Dequantize int4; program (rows, group)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    there = (rows < n_rows)[:, None]
    half = tl.arange(0, _HALF)[None, :]
    row = rows.to(tl.int64)[:, None]
    packed = tl.load(values + row * (n_in // 2) + group * _HALF + half, mask=there, other=0)
    entry = group * n_total + rows[:, None]
    scale = tl.load(scales + entry, mask=there, other=0.0).to(tl.float32)
    zero = tl.load(zeros + entry, mask=there, other=0).to(tl.float32)
    at = out + row * n_in + group * _GROUP + half
    tl.store(at, (((packed & 15).to(tl.float32) - zero) * scale).to(out.dtype.element_ty), mask=there)
    tl.store(at + _HALF, (((packed >> 4).to(tl.float32) - zero) * scale).to(out.dtype.element_ty), mask=there)


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, dim] -> float8_e4m3fn [T, dim] and scales [T, 1] float32: the greatest magnitude of a row / 448."""
    x = x.contiguous()
    n_rows, dim = x.shape
    values, scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(n_rows, 1, dtype=torch.float32)
    width = triton.next_power_of_2(dim)
    _to_fp8[(n_rows,)](x, values, scales, dim, width, num_warps=min(16, max(4, width // 512)))
    return values, scales


def dequantize(weights: DeviceWeights, first: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows first..stop-1 of quantized weights -> [stop - first, n_in]."""
    n_rows, n_in = stop - first, weights.n_in
    out = torch.empty(n_rows, n_in, dtype=dtype, device=weights.values.device)
    values = weights.values[first:stop]
    blocks = triton.cdiv(n_rows, ROWS)
    if weights.layout == "int4":
        scales, zeros = (table[:, first:] for table in weights.tables)
        _widen_groups[(blocks, n_in // INT4_GROUP)](values, scales, zeros, out, n_rows, n_in, weights.n_out, ROWS)
    else:
        (scales,) = weights.tables
        _widen[(blocks, triton.cdiv(n_in, CHANNELS))](values, scales[first:], out, n_rows, n_in, ROWS, CHANNELS)
    return out
