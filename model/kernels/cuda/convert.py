"""Conversions: narrow weights to the model's format, in registers and in memory, and activations to fp8."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.cuda import interpreted
from model.kernels.cuda.layouts import LARGEST, DeviceWeights
from model.kernels.groups import INT4_GROUP

_PLAIN = tl.constexpr(interpreted())
"""The interpreter has no bfloat16 and no assembly: it computes in float32."""
_GROUP, _HALF, _LARGEST = tl.constexpr(INT4_GROUP), tl.constexpr(INT4_GROUP // 2), tl.constexpr(LARGEST)
ROWS, CHANNELS = 16, 128
"""The block of weights that one program of `dequantize` converts."""


def of_nibbles(dtype: str, magic: int, one: int, shift: int) -> str:
    """Return PTX from 4 bytes to 4 weights in `dtype`, bf16 or f16: a byte's half (the upper if `shift` is 4) - zero.

    In bf16 they are multiplied by the scale too, and rounded once. `magic` above a half of a byte makes 128 + q in bf16
    (0x43) and 1024 + q in f16 (0x64). `$3` and `$4` have the negative of this number plus zero, `$5` and `$6` scales.
    `one` is 1.0, twice. The order of channels stays.
    """
    word = f"0x{magic:02x}{magic:02x}{magic:02x}{magic:02x}"
    code = (
        f"{{ .reg .b32 t, o, z; mov.b32 o, 0x{one:08x}; mov.b32 z, 0x80008000; "
        f"shr.b32 t, $2, {shift}; and.b32 t, t, 0x0f0f0f0f; "
    )
    for out, zero, scale, bytes_ in (("$0", "$3", "$5", "0x4140"), ("$1", "$4", "$6", "0x4342")):
        code += f"prmt.b32 {out}, t, {word}, {bytes_}; fma.rn.{dtype}x2 {out}, {out}, o, {zero}; "
        code += f"fma.rn.{dtype}x2 {out}, {out}, {scale}, z; " if dtype == "bf16" else ""
    return code + "}"


def of_e4m3(dtype: str, shift: int, power: int) -> str:
    """Return PTX from 4 numbers in e4m3 to 4 in `dtype`, bf16 or f16: exact, without instructions that need 8.9.

    The 7 lower bits move `shift` bits down from the top of 16, below the sign. Exponent and mantissa then are where
    `dtype` has them. The exponent is too small by the difference of the biases: `power` has that power of two, twice.
    """
    code = f"{{ .reg .b32 t, s, p, z; mov.b32 p, 0x{power:08x}; mov.b32 z, 0x80008000; "
    for out, bytes_ in (("$0", "0x1404"), ("$1", "0x3424")):  # a byte becomes the upper half of 16 bits
        code += (
            f"prmt.b32 t, $2, 0, {bytes_}; and.b32 s, t, 0x80008000; and.b32 t, t, 0x7f007f00; shr.b32 t, t, {shift}; "
            f"or.b32 t, t, s; fma.rn.{dtype}x2 {out}, t, p, z; "
        )
    return code + "}"


_BF16_LOW, _BF16_HIGH = (tl.constexpr(of_nibbles("bf16", 0x43, 0x3F803F80, shift)) for shift in (0, 4))
_FP16_LOW, _FP16_HIGH = (tl.constexpr(of_nibbles("f16", 0x64, 0x3C003C00, shift)) for shift in (0, 4))
_BF16_E4M3, _FP16_E4M3 = tl.constexpr(of_e4m3("bf16", 4, 0x7B807B80)), tl.constexpr(of_e4m3("f16", 1, 0x5C005C00))

_E4M3_BIAS = tl.constexpr(2.0**120)
"""The factor from the bits of e4m3 in a float32 to the number: the biases are 7 and 127."""


@triton.jit
def e4m3(packed, DTYPE: tl.constexpr):
    """Decode bytes in e4m3, exactly; to float32 under the interpreter."""
    if _PLAIN or tl.float32 == DTYPE:
        word = packed.to(tl.uint32)
        numbers = (((word & 0x80) << 24) | ((word & 0x7F) << 20)).to(tl.float32, bitcast=True) * _E4M3_BIAS
    elif tl.bfloat16 == DTYPE:
        numbers = tl.inline_asm_elementwise(_BF16_E4M3, "=&r,=&r,r", [packed], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        numbers = tl.inline_asm_elementwise(_FP16_E4M3, "=&r,=&r,r", [packed], dtype=tl.float16, is_pure=True, pack=4)
    return numbers


@triton.jit
def int4(packed, zeros, scales, DTYPE: tl.constexpr, HIGH: tl.constexpr):
    """Decode one half of each byte, minus `zeros`, times `scales`, rounded once; to float32 under the interpreter."""
    if _PLAIN or tl.float32 == DTYPE:
        values = (packed >> 4 if HIGH else packed & 15).to(tl.float32)
        values = (values - zeros.to(tl.float32)) * scales.to(tl.float32)
    elif tl.bfloat16 == DTYPE:
        less = (zeros.to(tl.uint16) | 0xC300).to(tl.bfloat16, bitcast=True)  # -128 - zero
        values = tl.inline_asm_elementwise(
            _BF16_HIGH if HIGH else _BF16_LOW, "=&r,=&r,r,r,r,r,r", [packed, less, scales],
            dtype=tl.bfloat16, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        less = (zeros.to(tl.uint16) | 0xE400).to(tl.float16, bitcast=True)  # -1024 - zero
        values = tl.inline_asm_elementwise(
            _FP16_HIGH if HIGH else _FP16_LOW, "=&r,=&r,r,r,r", [packed, less], dtype=tl.float16, is_pure=True, pack=4
        )
        values = (values.to(tl.float32) * scales.to(tl.float32)).to(tl.float16)  # a scale may be too small for float16
    return values


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
    """Dequantize fp8; program (rows, channels)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = (rows < n_rows)[:, None] & (channels < n_in)[None, :]
    at = rows.to(tl.int64)[:, None] * n_in + channels[None, :]
    scale = tl.load(scales + rows, mask=rows < n_rows, other=0.0)[:, None]
    wide = e4m3(tl.load(values + at, mask=there, other=0), tl.float32) * scale
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
    scale = tl.load(scales + entry, mask=there, other=0.0)
    zero = tl.load(zeros + entry, mask=there, other=0)
    at = out + row * n_in + group * _GROUP + half
    tl.store(at, int4(packed, zero, scale, tl.float32, False).to(out.dtype.element_ty), mask=there)
    tl.store(at + _HALF, int4(packed, zero, scale, tl.float32, True).to(out.dtype.element_ty), mask=there)


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Convert x [T, dim] -> float8_e4m3fn [T, dim] and scales [T, 1] float32: the greatest magnitude of a row / 448."""
    x = x.contiguous()
    n_rows, dim = x.shape
    values, scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(n_rows, 1, dtype=torch.float32)
    width = triton.next_power_of_2(dim)
    _to_fp8[(n_rows,)](x, values, scales, dim, width, num_warps=min(16, max(4, width // 512)))
    return values, scales


def dequantize(weights: DeviceWeights, first: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Dequantize rows first..stop-1 of weights -> [stop - first, n_in]."""
    n_rows, n_in = stop - first, weights.n_in
    out = torch.empty(n_rows, n_in, dtype=dtype, device=weights.values.device)
    values = weights.bytes[first:stop]
    blocks = triton.cdiv(n_rows, ROWS)
    if weights.layout == "int4":
        scales, zeros = (table[:, first:] for table in weights.tables)
        _widen_groups[(blocks, n_in // INT4_GROUP)](values, scales, zeros, out, n_rows, n_in, weights.n_out, ROWS)
    else:
        (scales,) = weights.tables
        _widen[(blocks, triton.cdiv(n_in, CHANNELS))](values, scales[first:], out, n_rows, n_in, ROWS, CHANNELS)
    return out
