"""bfloat16 weights of a file's blocks. tests/model/kernels/test_pairs.py has the products."""

import torch

from model.checkpoint.matrices import BlockMatrix
from model.linear.bfloat16 import BFloat16Linear


def test_a_files_blocks_are_decoded() -> None:
    blocks = BlockMatrix(torch.randint(-127, 128, (300, 2, 32), dtype=torch.int8), torch.rand(300, 2).half())
    made = BFloat16Linear(64, 300)
    made.take(0, blocks)
    expected = blocks.dequantize().bfloat16().float().T
    assert torch.equal(made(torch.eye(64)).float(), expected)
