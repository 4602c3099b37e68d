"""The roundings of RMSNorm in bfloat16; `test_dense_oracles.py` has all else of a layer."""

import torch

from model.linear.base import RMSNorm


def test_rmsnorm_computes_in_float32_casts_then_scales() -> None:
    """The rows are so small that epsilon counts."""
    x = torch.randn(3, 64).bfloat16() / 256
    layer = RMSNorm(64, 1e-5).bfloat16()
    layer.weight.data = torch.randn(64).bfloat16()
    wide = x.float()
    expected = (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16() * layer.weight
    assert torch.equal(layer(x), expected)
