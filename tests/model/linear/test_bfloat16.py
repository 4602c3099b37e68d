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


@pytest.mark.parametrize(("n_out", "n_in"), SHAPES)
@pytest.mark.parametrize("n_rows", [1, 8, 15])
def test_products_are_one_chain_of_additions(kernels: Kernels, n_out: int, n_in: int, n_rows: int) -> None:
    """Products are exact, and each sum is rounded to float32. vdpbf16ps adds the second product of a pair first."""
    torch.manual_seed(0)
    weight, x = rounded(n_out, n_in).double(), rounded(n_rows, n_in).double()
    order = torch.arange(n_in)
    if kernels.variant in ("avx512bf16", "amx"):
        order = torch.arange(n_in + n_in % 2).bitwise_xor(1)
    expected = torch.zeros(n_rows, n_out)
    for i in order[order < n_in]:
        expected = (expected + x[:, i, None] * weight[:, i]).float()
    assert torch.equal(kernels.linear(of(kernels, weight.float()), x.float()), expected)


def test_a_files_blocks_are_decoded() -> None:
    blocks = BlockMatrix(torch.randint(-127, 128, (300, 2, 32), dtype=torch.int8), torch.rand(300, 2).half())
    made = BFloat16Linear(64, 300)
    made.take(0, blocks)
    expected = blocks.dequantize().bfloat16().float().T
    assert torch.equal(made(torch.eye(64)).float(), expected)
