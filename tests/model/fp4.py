"""4-bit floats from their definitions, in float64, one byte at a time; and weights in NVFP4. No decoder takes part."""

from functools import cache

import numpy as np
import torch
from torch import Tensor


@cache
def e2m1(code: int) -> float:
    """A sign, 2 bits of exponent with a bias of 1, 1 bit of mantissa; no infinities (OCP Microscaling Formats 1.0)."""
    exponent, mantissa = code >> 1 & 3, code & 1
    return (-1) ** (code >> 3) * (2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2)


@cache
def e4m3(byte: int) -> float:
    """4 bits of exponent with a bias of 7, 3 of mantissa (arXiv 2209.05433)."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = 2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8
    return -size if byte >> 7 else size


def meant(codes: Tensor, scales: Tensor, factor: float = 1.0) -> np.ndarray:
    """float64 [n_out, n_in]; codes [n_out, n_in/2], scales [n_out, n_in/16] of NVFP4 or [n_out, n_in/32] of MXFP4."""
    found = np.empty((len(codes), codes.shape[1] * 2))
    found[:, 0::2] = np.vectorize(lambda byte: e2m1(int(byte) & 15))(codes.numpy())
    found[:, 1::2] = np.vectorize(lambda byte: e2m1(int(byte) >> 4))(codes.numpy())
    group = found.shape[1] // scales.shape[1]
    decode = e4m3 if group == 16 else lambda e: 2.0 ** (e - 127)
    sizes = np.vectorize(lambda byte: decode(int(byte)))(scales.numpy())
    return found * np.repeat(sizes, group, axis=1) * factor


GROUPS = {"nvfp4": 16, "mxfp4": 32}
BETWEEN = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
"""The middles between neighbouring magnitudes of a code."""


def random_fp4(kind: str, n_out: int, n_in: int) -> tuple[Tensor, Tensor]:
    """Any codes, and scales: of NVFP4 any, subnormal ones and 0 too; of MXFP4 powers of two from 2^-8 to 2^7."""
    codes = torch.randint(0, 256, (n_out, n_in // 2), dtype=torch.uint8)
    shape = n_out, n_in // GROUPS[kind]
    first, stop = (0, 127) if kind == "nvfp4" else (119, 135)
    return codes, torch.randint(first, stop, shape, dtype=torch.uint8)


def nearest(weight: Tensor) -> tuple[Tensor, Tensor, float]:
    """NVFP4 near a weight [n_out, n_in]: codes, scales in e4m3, and the number by which scales are to be divided.

    The greatest magnitude of a group becomes 6, the greatest scale 448.
    """
    groups = weight.float().unflatten(1, (-1, 16))
    divisor = 6 * 448 / float(weight.abs().max())
    scales = (groups.abs().amax(dim=2) / 6 * divisor).to(torch.float8_e4m3fn)
    steps = groups * divisor / scales.float().clamp(min=2**-9)[:, :, None]
    codes = (torch.bucketize(steps.abs(), BETWEEN) + 8 * (steps < 0)).flatten(1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales, divisor
