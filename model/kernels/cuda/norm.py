"""RMSNorm (Zhang 2019, arXiv 1910.07467), as model/linear/base.py: float32 sums, cast back, then scaled."""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 2048
"""Short rows share a program, up to this many values."""


@triton.jit(do_not_specialize=["n_rows"])
def _rms_norm(x, scale, y, n_rows, dim, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channels = tl.arange(0, WIDTH)
    there = (rows < n_rows)[:, None] & (channels < dim)[None, :]
    at = rows.to(tl.int64)[:, None] * dim + channels[None, :]  # [ROWS, WIDTH]
    values = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(values * values, axis=1) / dim + eps)  # [ROWS]
    normed = (values * root[:, None]).to(x.dtype.element_ty).to(tl.float32)
    weights = tl.load(scale + channels, mask=channels < dim, other=0.0).to(tl.float32)
    tl.store(y + at, (normed * weights[None, :]).to(y.dtype.element_ty), mask=there)


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Normalize x [T, dim], scale [dim] -> [T, dim]. The rows of a program depend on dim alone, as do the bits."""
    x = x.contiguous()
    n_rows, dim = x.shape
    y = torch.empty_like(x)
    width = triton.next_power_of_2(dim)
    rows = max(1, VALUES // width)
    warps = min(16, max(4, rows * width // 512))
    _rms_norm[(triton.cdiv(n_rows, rows),)](x, scale, y, n_rows, dim, eps, rows, width, num_warps=warps)
    return y
