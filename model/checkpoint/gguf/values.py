"""The values of GGUF's kinds of tensors. No torch.

The gguf package is imported only to decode a kind for which there is no code here: it imports all of mistral-common,
which takes 40 MB and as long as all weights of a small model.

A block of Q1_0 or Q2_0 is a float16 scale and the bits of its values, the lowest ones first.
"""

import numpy as np

from model.checkpoint.gguf.index import KINDS

FEW = {"Q1_0": (1, 2), "Q2_0": (2, 1)}
"""Kinds of few bits: the bits, and the step, so that a value is `step * q - 1` scales."""


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
    (bits, step), (_, block, n_bytes) = FEW[kind], KINDS[kind]
    blocks = data.reshape(*data.shape[:-1], -1, n_bytes)
    q = blocks[..., 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)
    values = q.reshape(*blocks.shape[:-1], block).astype(np.int8) * np.int8(step) - np.int8(1)
    return values, np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
