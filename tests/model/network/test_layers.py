"""RMSNorm and SwiGLU against numbers computed by hand."""

import pytest
import torch

from model.linear.base import RMSNorm, swiglu
from model.network.feed_forward import FeedForward


@pytest.mark.parametrize(
    ("x", "eps", "expected"),
    [
        ([2.0, -1.0, 3.0, 0.0], 1e-6, [1.0690, -0.5345, 1.6036, 0.0]),
        ([3.0, 4.0], 1e-6, [0.8485, 1.1314]),
        ([300.0, 400.0], 1e-6, [0.8485, 1.1314]),
        ([1e-3, 1e-3], 3e-6, [0.5, 0.5]),  # 1e-3 / sqrt(1e-6 + 3e-6): eps is inside the root
    ],
)
def test_rmsnorm(x: list[float], eps: float, expected: list[float]) -> None:
    layer = RMSNorm(len(x), eps)
    layer.weight.data.fill_(1.0)
    assert layer(torch.tensor([x]))[0].tolist() == pytest.approx(expected, abs=1e-4)


def test_rmsnorm_computes_in_float32_casts_then_scales() -> None:
    x = torch.randn(3, 64).bfloat16()
    layer = RMSNorm(64, 1e-5).bfloat16()
    layer.weight.data = torch.randn(64).bfloat16()
    wide = x.float()
    expected = (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16() * layer.weight
    assert torch.equal(layer(x), expected)


def test_swiglu_scalars() -> None:
    """x = 1.5, w1 = 2 (+0.5), w3 = 3: silu(3.5) = 3.39741, times 4.5."""
    assert swiglu(torch.tensor(3.5), torch.tensor(4.5)).item() == pytest.approx(15.28833, abs=1e-4)


def test_feed_forward_gates_with_the_first_half() -> None:
    block = FeedForward(1, 1).requires_grad_(False)
    block.w13.weight.data = torch.tensor([[2.0], [3.0]])
    block.w2.weight.data = torch.tensor([[10.0]])
    x = 1.5
    silu = 3.0 / (1 + torch.tensor(-3.0).exp().item())
    assert block(torch.tensor([[x]])).item() == pytest.approx(silu * 4.5 * 10, rel=1e-5)
