"""Weights as a GGUF file has them."""

import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from model.checkpoint.stored import Stored


def encoded(weight: Tensor, kind: str) -> Stored:
    """A matrix [n_out, n_in] in a kind that the gguf package encodes."""
    data = quantize(weight.numpy(), GGMLQuantizationType[kind])
    return Stored(torch.from_numpy(data), "gguf", kind=kind)
