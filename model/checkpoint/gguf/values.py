"""GGUF's kinds of tensors: their numbers, the sizes of their blocks, and their values. No torch.

The gguf package has no decoder of Q1_0 and does not know Q2_0: their layouts are those of llama.cpp's
ggml-common.h of 2026 (commit 01243c58). A block is a float16 scale and the bits of its values, the lowest ones first.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from model.checkpoint.gguf.index import FLOATS


class Few(NamedTuple):
    """A kind of few bits: GGUF's number, values and bytes of a block. A value is `step * q - 1` scales."""

    number: int
    block: int
    n_bytes: int
    bits: int
    step: int


FEW = {"Q1_0": Few(41, 128, 18, bits=1, step=2), "Q2_0": Few(42, 64, 18, bits=2, step=1)}
"""A fork of llama.cpp writes blocks of 128 values under the number of Q2_0. The reader refuses such a file, because its
tensors would overlap or exceed it."""


def known_kinds() -> dict[int, tuple[str, int, int]]:
    """Return name, values and bytes of a block of each kind by GGUF's number, with kinds that Noria does not read."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    known = {int(number): (number.name, *GGML_QUANT_SIZES[number]) for number in GGMLQuantizationType}
    return known | {few.number: (name, few.block, few.n_bytes) for name, few in FEW.items()}


@cache
def block_of(kind: str) -> tuple[int, int]:
    """Return values and bytes of a block of a kind."""
    return next((values, n_bytes) for name, values, n_bytes in known_kinds().values() if name == kind)


@cache
def readable_kinds() -> tuple[str, ...]:
    """Return GGUF's names of the kinds that Noria reads: floats, and those that have a decoder."""
    return tuple(name for name, _, n_bytes in known_kinds().values() if name in FLOATS or _has_decoder(name, n_bytes))


def _has_decoder(kind: str, n_bytes: int) -> bool:
    try:
        dequantized(np.zeros((1, n_bytes), np.uint8), kind)  # a row of one block
    except NotImplementedError:
        return False
    return True


def dequantized(data: np.ndarray, kind: str) -> np.ndarray:
    """Dequantize uint8 [..., bytes of a row] to float32 [..., values of a row]."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # a damaged weight is found by who takes it
        if kind not in FEW:
            return np.asarray(dequantize(data, GGMLQuantizationType[kind]))
        values, scales = integers(data, kind)
        return (values * scales.astype(np.float32)[..., None]).reshape(*data.shape[:-1], -1)


def integers(data: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 [..., blocks, values of a block] and float16 scales [..., blocks] of a kind of few bits."""
    few = FEW[kind]
    blocks = data.reshape(*data.shape[:-1], -1, few.n_bytes)
    q = blocks[..., 2:, None] >> np.arange(0, 8, few.bits, dtype=np.uint8) & (2**few.bits - 1)
    values = q.reshape(*blocks.shape[:-1], few.block).astype(np.int8) * np.int8(few.step) - np.int8(1)
    return values, np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
