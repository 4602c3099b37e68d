"""Mixture of experts: routing by hand, the whole against one token at a time."""

import math

import pytest
import torch
from torch.nn.functional import silu

from model.network.moe import MoE, route


def test_softmax_is_over_the_chosen_only() -> None:
    experts, weights = route(torch.tensor([[0.0, 3.0, 1.0, 2.0]]), 2)
    assert experts.tolist() == [[1, 3]]
    first = math.e / (math.e + 1)
    assert weights[0].tolist() == pytest.approx([first, 1 - first])


def test_by_hand() -> None:
    """Scalar experts 2 silu(x) x, ... scaled 1, 10, 100: the token's logits choose experts 2 and 0."""
    block = MoE(1, 1, 3, 2).requires_grad_(False)
    block.gate.weight.data = torch.tensor([[1.0], [0.0], [2.0]])
    for expert, scale in zip(block.experts, (1.0, 10.0, 100.0), strict=True):
        expert.w13.weight.data = torch.tensor([[1.0], [2.0]])
        expert.w2.weight.data = torch.tensor([[scale]])
    x = 0.5  # logits 0.5, 0, 1
    inner = x / (1 + math.exp(-x)) * 2 * x
    high = math.exp(1.0) / (math.exp(1.0) + math.exp(0.5))
    expected = inner * (100 * high + 1 * (1 - high))
    assert block(torch.tensor([[x]])).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n_tokens", [1, 2, 17])
def test_grouping_equals_one_token_at_a_time(n_tokens: int) -> None:
    torch.manual_seed(n_tokens)
    block = MoE(8, 16, 8, 2).requires_grad_(False)
    for parameter in block.parameters():
        parameter.normal_(std=0.3)
    x = torch.randn(n_tokens, 8)
    for row, token in zip(block(x), x, strict=True):
        logits = block.gate.weight @ token
        best = sorted(range(8), key=lambda e: -logits[e].item())[:2]
        shares = torch.tensor([logits[e].item() for e in best]).softmax(0)
        expected = torch.zeros(8)
        for expert, share in zip(best, shares, strict=True):
            w1, w3 = block.experts[expert].w13.weight.chunk(2)
            expected += share * (block.experts[expert].w2.weight @ (silu(w1 @ token) * (w3 @ token)))
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
def test_a_token_gets_the_same_bits_beside_any_others(scheme: str) -> None:
    torch.manual_seed(0)
    block = MoE(512, 64, 8, 2, scheme).requires_grad_(False)
    block.gate.weight.normal_()
    for expert in block.experts:
        expert.w13.take(0, torch.randn(128, 512) / 20)
        expert.w2.take(0, torch.randn(512, 64) / 8)
    x = torch.randn(70, 512)
    whole = block(x)
    for size in (1, 2, 7, 33):
        assert torch.equal(torch.cat([block(part) for part in x.split(size)]), whole)
