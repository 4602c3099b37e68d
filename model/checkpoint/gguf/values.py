"""GGUF's kinds of tensors: their numbers, the sizes of their blocks, and their values. No torch.

The gguf package is imported only to decode a kind for which there is no code here: it imports all of mistral-common,
which takes 40 MB and as long as all weights of a small model.

Layouts are those of llama.cpp's ggml-common.h of 2026 (commit 01243c58). A block of Q1_0 or Q2_0 is a float16 scale and
the bits of its values, the lowest ones first.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Kind(NamedTuple):
    """A kind: GGUF's name and number, values and bytes of a block, and whether Noria reads it."""

    name: str
    number: int
    block: int
    n_bytes: int
    is_read: bool = True


class Few(NamedTuple):
    """A kind of few bits: a value is `step * q - 1` scales."""

    bits: int
    step: int


_KINDS = (
    *(("F32", 0, 1, 4), ("F16", 1, 1, 2), ("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22)),
    *(("Q5_1", 7, 32, 24), ("Q8_0", 8, 32, 34), ("Q8_1", 9, 32, 40, False), ("Q2_K", 10, 256, 84)),
    *(("Q3_K", 11, 256, 110), ("Q4_K", 12, 256, 144), ("Q5_K", 13, 256, 176), ("Q6_K", 14, 256, 210)),
    *(("Q8_K", 15, 256, 292, False), ("IQ2_XXS", 16, 256, 66), ("IQ2_XS", 17, 256, 74), ("IQ3_XXS", 18, 256, 98)),
    *(("IQ1_S", 19, 256, 50), ("IQ4_NL", 20, 32, 18), ("IQ3_S", 21, 256, 110), ("IQ2_S", 22, 256, 82)),
    *(("IQ4_XS", 23, 256, 136), ("I8", 24, 1, 1, False), ("I16", 25, 1, 2, False), ("I32", 26, 1, 4, False)),
    *(("I64", 27, 1, 8, False), ("F64", 28, 1, 8, False), ("IQ1_M", 29, 256, 56), ("BF16", 30, 1, 2)),
    *(("TQ1_0", 34, 256, 54), ("TQ2_0", 35, 256, 66), ("MXFP4", 39, 32, 17), ("NVFP4", 40, 64, 36)),
    *(("Q1_0", 41, 128, 18), ("Q2_0", 42, 64, 18)),
)
KINDS: Mapping[str, Kind] = {values[0]: Kind(*values) for values in _KINDS}
FEW = {"Q1_0": Few(bits=1, step=2), "Q2_0": Few(bits=2, step=1)}
"""A fork of llama.cpp writes blocks of 128 values under the number of Q2_0. The reader refuses such a file, because its
tensors would overlap or exceed it."""
READABLE = tuple(kind.name for kind in KINDS.values() if kind.is_read)


def dequantized(data: np.ndarray, kind: str) -> np.ndarray:
    """Dequantize uint8 [..., bytes of a row] to float32 [..., values of a row]."""
    with np.errstate(all="ignore"):  # a damaged weight is found by who takes it
        if kind not in FEW:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize

            return np.asarray(dequantize(data, GGMLQuantizationType[kind]))
        values, scales = integers(data, kind)
        return (values * scales.astype(np.float32)[..., None]).reshape(*data.shape[:-1], -1)


def integers(data: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 [..., blocks, values of a block] and float16 scales [..., blocks] of a kind of few bits."""
    few, size = FEW[kind], KINDS[kind]
    blocks = data.reshape(*data.shape[:-1], -1, size.n_bytes)
    q = blocks[..., 2:, None] >> np.arange(0, 8, few.bits, dtype=np.uint8) & (2**few.bits - 1)
    values = q.reshape(*blocks.shape[:-1], size.block).astype(np.int8) * np.int8(few.step) - np.int8(1)
    return values, np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
