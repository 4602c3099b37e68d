"""Blocks of GGUF as groups of 32 channels with a scale and maybe a minimum.

Q4_0, Q4_1 and Q8_0 are such groups in the file. Q1_0 and Q2_0 fit into the 4-bit layout exactly, Q5_0, Q5_1 and IQ4_NL
into the 8-bit layout. Q4_K, Q5_K and IQ4_XS have a short scale (and minimum) for each group and a float16 factor for
256 channels: their products are rounded to float16, by at most 2^-11 of their size. All other kinds are quantized
again, to 8 bits. The layouts are those of llama.cpp's ggml-common.h.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from model.checkpoint.blocks import HALF, BlockForm, Blocks, joined, quantize8
from model.checkpoint.gguf.index import OTHERS, STORED
from model.checkpoint.gguf.values import dequantized, integers
from model.kernels.groups import BLOCK_GROUP

AS_THEY_ARE: Mapping[str, int] = {"Q4_0": 2, "Q4_1": 4, "Q8_0": 2}
"""Bytes of float16 before the integers of a group: its scale, Q4_1's minimum."""
_CODES = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8)
"""The 16 values of IQ4_NL and IQ4_XS."""


def form_of(kind: str) -> BlockForm:
    """Return the form of `blocks` of a kind."""
    form = STORED.get(kind, OTHERS)
    return form.value_bits * BLOCK_GROUP // 8, form.has_minima


def blocks(rows: Tensor, kind: str, own: range) -> Blocks:
    """Return the channels `own` of uint8 [n_out, bytes of a row]: a view of `AS_THEY_ARE`, a copy of all other kinds.

    A kind that does not fit is quantized again, to 8 bits.
    """
    if kind in AS_THEY_ARE:
        return _as_they_are(rows, kind).columns(own)
    decode = _DECODERS.get(kind)
    return quantize8(floats(rows, kind, own)) if decode is None else decode(rows).columns(own)


def floats(rows: Tensor, kind: str, own: range) -> Tensor:
    """Decode the channels `own` of uint8 [n_out, bytes of a row] to float32."""
    if kind in AS_THEY_ARE:
        whole = _as_they_are(rows, kind).floats()
    elif kind == "Q6_K":
        whole = _q6_k_floats(rows)
    elif kind in _K_KINDS:
        q, scales, minima = _K_KINDS[kind](rows)
        whole = (q * scales[..., None] - minima[..., None]).flatten(1)
    else:
        whole = torch.from_numpy(dequantized(rows.numpy(), kind))
    return whole[:, own.start : own.stop]


def fit_float16(rows: Tensor) -> bool:
    """Return whether all scales and minima of Q4_K [n, bytes of a row] are finite in float16."""
    factors = rows.unflatten(1, (-1, 144))[..., :4].contiguous().view(torch.float16).float()
    return float(factors.abs().max()) * 63 <= torch.finfo(torch.float16).max


def _as_they_are(rows: Tensor, kind: str) -> Blocks:
    n_head = AS_THEY_ARE[kind]
    groups = rows.unflatten(1, (-1, n_head + (BLOCK_GROUP if kind == "Q8_0" else HALF)))
    head, quants = groups[..., :n_head].view(torch.float16), groups[..., n_head:]
    mins = head[..., 1] if kind == "Q4_1" else None
    return Blocks(quants.view(torch.int8) if kind == "Q8_0" else quants, head[..., 0], mins)


def _q5_0(rows: Tensor) -> Blocks:
    groups = rows.unflatten(1, (-1, 22))
    q = _fifth_bit(groups[..., 2:6], groups[..., 6:]).view(torch.int8) - 16
    return Blocks(q, _halves(groups, 0))


def _q5_1(rows: Tensor) -> Blocks:
    groups = rows.unflatten(1, (-1, 24))
    q = _fifth_bit(groups[..., 4:8], groups[..., 8:]).view(torch.int8)
    return Blocks(q, _halves(groups, 0), _halves(groups, 2))


def _iq4_nl(rows: Tensor) -> Blocks:
    groups = rows.unflatten(1, (-1, 18))
    return Blocks(_CODES[_nibbles(groups[..., 2:]).int()], _halves(groups, 0))


def _few_bits(kind: str, rows: Tensor) -> Blocks:
    values, scales = map(torch.from_numpy, integers(rows.numpy(), kind))
    q = (values.flatten(1).unflatten(1, (-1, BLOCK_GROUP)) + 8).view(torch.uint8)
    return Blocks(joined(q), scales.repeat_interleave(values.shape[2] // BLOCK_GROUP, 1))


def _k_blocks(kind: str, rows: Tensor) -> Blocks:
    q, scales, minima = _K_KINDS[kind](rows)
    return Blocks(joined(q) if kind == "Q4_K" else q.view(torch.int8), scales.half(), (-minima).half())


def _q4_k(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    blocks = rows.unflatten(1, (-1, 144))
    return _pairs_of_groups(blocks[..., 16:]), *_scales_and_minima(blocks)


def _q5_k(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    blocks = rows.unflatten(1, (-1, 176))
    high = blocks[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1  # [n, blocks, 8, 32]
    return _pairs_of_groups(blocks[..., 48:]) | high.flatten(1, 2) << 4, *_scales_and_minima(blocks)


def _q6_k_floats(rows: Tensor) -> Tensor:
    """Decode to float32: groups of 16 channels have an int8 factor, and 256 channels a float16 one."""
    blocks = rows.unflatten(1, (-1, 210))
    low = blocks[..., :128].unflatten(2, (2, 1, 64)) >> _shifts(4) & 15  # [n, blocks, 2, 2, 64]
    high = blocks[..., 128:192].unflatten(2, (2, 1, 32)) >> _shifts(2) & 3  # [n, blocks, 2, 4, 32]
    q = (low.flatten(2) | high.flatten(2) << 4).view(torch.int8) - 32
    scales = _halves(blocks, 208).float()[..., None] * blocks[..., 192:208].view(torch.int8)
    return (q.unflatten(2, (16, 16)) * scales[..., None]).flatten(1)


def _shifts(n_bits: int) -> Tensor:
    return torch.arange(0, 8, n_bits, dtype=torch.uint8)[:, None]


def _iq4_xs(rows: Tensor) -> Blocks:
    blocks = rows.unflatten(1, (-1, 136))
    low = _alternating(blocks[..., 4:8])  # [n, blocks, 8]
    high = blocks[..., 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8) & 3  # two bits a group, 4 groups a byte
    factors = (low | high.flatten(2) << 4).float() - 32
    scales = (_halves(blocks, 0).float()[..., None] * factors).half()
    quants = blocks[..., 8:].unflatten(2, (8, HALF)).flatten(1, 2)
    return Blocks(_CODES[_nibbles(quants).int()], scales.flatten(1))


_K_KINDS: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]] = {"Q4_K": _q4_k, "Q5_K": _q5_k}
"""Decoders to integers [n, groups, 32], and scales and minima [n, groups] in float32."""
_DECODERS: Mapping[str, Callable[[Tensor], Blocks]] = {
    "Q1_0": partial(_few_bits, "Q1_0"),
    "Q2_0": partial(_few_bits, "Q2_0"),
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "IQ4_NL": _iq4_nl,
    **{kind: partial(_k_blocks, kind) for kind in _K_KINDS},
    "IQ4_XS": _iq4_xs,
}


def _halves(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 at this byte of every block."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(data: Tensor) -> Tensor:
    """Unpack [..., 16] bytes -> [..., 32]: the lower halves of all bytes, then the upper ones."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def _alternating(data: Tensor) -> Tensor:
    """Unpack [..., n] bytes -> [..., 2n]: of each byte the lower half, then the upper one."""
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)


def _fifth_bit(bits: Tensor, low: Tensor) -> Tensor:
    """Unpack [..., 4] and [..., 16] bytes -> [..., 32]: five bits a value. Bit j of `bits` is the fifth of value j."""
    high = bits[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
    return _nibbles(low) | high.flatten(-2) << 4


def _pairs_of_groups(data: Tensor) -> Tensor:
    """Unpack [n, blocks, 128] bytes -> [n, blocks * 8, 32]: of 32 bytes the lower halves, then the upper ones."""
    pairs = data.unflatten(2, (4, BLOCK_GROUP))
    return torch.stack((pairs & 15, pairs >> 4), dim=3).flatten(1, 3)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Decode scales and minima [n, blocks * 8] of Q4_K and Q5_K: float16 factors times 16 numbers in 12 bytes.

    A value is its integer times its scale, less its minimum.
    """
    d, m, md = blocks[..., 4:16].unflatten(2, (3, 4)).unbind(2)  # [n, blocks, 4] each
    scales = torch.cat((d & 63, md & 15 | d >> 2 & 48), dim=2)
    minima = torch.cat((m & 63, md >> 4 | m >> 2 & 48), dim=2)
    scale, minimum = (_halves(blocks, at).float()[..., None] for at in (0, 2))
    return (scale * scales).flatten(1), (minimum * minima).flatten(1)
