"""bfloat16 weights of a file's blocks. tests/model/kernels/test_pairs.py has the products."""

import torch

from model.linear.bfloat16 import BFloat16Linear
from tests.model.encoding import encoded


def test_a_files_blocks_are_decoded() -> None:
    blocks = encoded(torch.randn(300, 64), "Q8_0")
    made = BFloat16Linear(64, 300)
    made.take(0, blocks)
    expected = blocks.floats().bfloat16().float().T
    assert torch.equal(made(torch.eye(64)).float(), expected)
