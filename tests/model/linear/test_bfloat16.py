"""bfloat16 weights: the kernels against plain additions and against themselves."""

import pytest
import torch
from torch import Tensor

from model.checkpoint.matrices import BlockMatrix
from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.linear.bfloat16 import BFloat16Linear

SHAPES = [(16, 64), (1, 3), (17, 65), (200, 130)]


def rounded(*shape: int) -> Tensor:
    """Values of bfloat16, in float32."""
    return torch.randn(shape).bfloat16().float()


def of(kernels: Kernels, weight: Tensor) -> PackedWeights:
    made = packed.bfloat16(*weight.shape)
    kernels.quantize(made, 0, weight)
    return made


def test_a_files_blocks_are_decoded() -> None:
    blocks = BlockMatrix(torch.randint(-127, 128, (300, 2, 32), dtype=torch.int8), torch.rand(300, 2).half())
    made = BFloat16Linear(64, 300)
    made.take(0, blocks)
    expected = blocks.dequantize().bfloat16().float().T
    assert torch.equal(made(torch.eye(64)).float(), expected)
