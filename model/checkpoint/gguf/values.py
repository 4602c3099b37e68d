"""The values of GGUF's kinds of tensors. No torch.

The gguf package is imported only to decode a kind for which there is no code here: it imports all of mistral-common,
which takes 40 MB and as long as all weights of a small model.

Layouts are those of llama.cpp's ggml-common.h of 2026 (commit 01243c58). A block of Q1_0 or Q2_0 is a float16 scale and
the bits of its values, the lowest ones first.
"""

from typing import NamedTuple

import numpy as np

from model.checkpoint.gguf.index import KINDS


class Few(NamedTuple):
    """A kind of few bits: a value is `step * q - 1` scales."""

    bits: int
    step: int


FEW = {"Q1_0": Few(bits=1, step=2), "Q2_0": Few(bits=2, step=1)}


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
