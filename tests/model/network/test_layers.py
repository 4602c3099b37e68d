"""RMSNorm and SwiGLU against numbers computed by hand."""

import pytest
import torch

from model.linear.base import RMSNorm, swiglu
from model.network.feed_forward import FeedForward


def norm(x: list[float], scale: float = 1.0, eps: float = 1e-6) -> list[float]:
    layer = RMSNorm(len(x), eps)
    layer.weight.data.fill_(scale)
    return layer(torch.tensor([x]))[0].tolist()


def test_rmsnorm_of_four() -> None:
    assert norm([2.0, -1.0, 3.0, 0.0]) == pytest.approx([1.0690, -0.5345, 1.6036, 0.0], abs=1e-4)


def test_rmsnorm_of_two() -> None:
    assert norm([3.0, 4.0]) == pytest.approx([0.8485, 1.1314], abs=1e-4)


def test_rmsnorm_ignores_scale_but_not_shift() -> None:
    assert norm([300.0, 400.0]) == pytest.approx(norm([3.0, 4.0]), abs=1e-5)
    assert norm([4.0, 5.0]) != pytest.approx(norm([3.0, 4.0]), abs=1e-2)


def test_rmsnorm_has_eps_inside_the_root() -> None:
    assert norm([1e-3, 1e-3], eps=3e-6) == pytest.approx([0.5, 0.5])  # 1e-3 / sqrt(1e-6 + 3e-6)


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
