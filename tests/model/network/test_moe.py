"""Mixture of experts: against float64, and the whole against one token at a time."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from model.checkpoint.stored import Stored
from model.kernels.cpu import native
from model.linear.base import RMSNorm
from model.linear.none import Linear
from model.machine.host import choose_threads
from model.network.feed_forward import FeedForward
from model.network.moe import MoE
from tests.model.encoding import encoded

VARIANTS = native.available()


def compiled(scheme: str, n_used: int, shared_dim: int = 0) -> MoE:
    """A block of 8 experts with random weights in the layouts of the kernels."""
    torch.manual_seed(0)
    block = MoE(512, 64, 8, n_used, scheme, shared_dim=shared_dim, routed_scale=1.0).requires_grad_(False)
    block.gate.weight.normal_()
    for part in (*block.experts, *([block.shared_experts] if shared_dim else [])):
        part.w13.take(0, Stored(torch.randn(part.w13.n_out, 512) / 20))
        part.w2.take(0, Stored(torch.randn(512, part.w2.n_in) / 8))
    return block


def unit_norm() -> RMSNorm:
    norm = RMSNorm(512, 1e-5).requires_grad_(False)
    norm.weight.uniform_(0.5, 1.5)
    return norm


def reference(block: MoE, x: Tensor) -> Tensor:
    """The block in float64, by the rule of releases since Mistral Large 3.

    Softmax over all experts; the best ones, renormalised; times the scale; plus the shared experts.
    """

    def feed_forward(part: FeedForward, rows: Tensor) -> Tensor:
        w1, w3 = part.w13.weight.double().chunk(2)
        return (silu(rows @ w1.T) * (rows @ w3.T)) @ part.w2.weight.double().T

    x = x.double()
    scores = (x @ block.gate.weight.double().T).softmax(dim=-1)
    y = torch.zeros_like(x)
    for row in range(len(x)):
        best = scores[row].argsort(descending=True)[: block.n_used]
        for expert in best.tolist():
            share = scores[row, expert] / scores[row, best].sum() * block.routed_scale
            y[row] += share * feed_forward(block.experts[expert], x[row : row + 1])[0]
    return y if block.shared_experts is None else y + feed_forward(block.shared_experts, x)


@pytest.mark.parametrize("shared_dim", [0, 24])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_softmax_over_all_experts_is_the_same_rule(scale: float, shared_dim: int) -> None:
    torch.manual_seed(3)
    block = MoE(8, 16, 6, 3, shared_dim=shared_dim, routed_scale=scale).requires_grad_(False)
    for parameter in block.parameters():
        parameter.normal_(std=0.3)
    x = torch.randn(9, 8)
    torch.testing.assert_close(block(x).double(), reference(block, x), atol=1e-5, rtol=1e-5)
    onto = x.clone()
    assert block(onto, onto=onto) is onto
    torch.testing.assert_close(onto.double(), x + reference(block, x), atol=1e-5, rtol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
def test_the_kernels_give_the_bits_of_one_expert_after_another(
    scheme: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one choice its share is exactly 1. With two experts of the same gate the shares are exactly a half."""
    monkeypatch.setenv("NORIA_KERNELS", variant)
    norm, x = unit_norm(), torch.randn(37, 512)
    logits = norm(x).double()
    for n_used, share in ((1, 1.0), (2, 0.5)):
        block = compiled(scheme, n_used, shared_dim=96)
        if n_used == 2:
            block.gate.weight[4:] = block.gate.weight[:4]
        best = (logits @ block.gate.weight[: 8 // n_used].double().T).argmax(dim=-1).tolist()
        onto = torch.randn(37, 512)
        expected = onto.clone()
        for row, expert in enumerate(best):
            used = [block.experts[expert + 4 * choice] for choice in range(n_used)]
            expected[row] += sum(share * one(x[row : row + 1], norm)[0] for one in used)
        expected = block.shared_experts(x, norm, onto=expected)
        assert torch.equal(block(x, norm, onto=onto), expected)


@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
def test_the_kernels_route_as_pytorch_does(scheme: str) -> None:
    """The gate of more experts than a tile of them, whose last vector is not full."""
    torch.manual_seed(1)
    block = MoE(96 + 32, 64, 11, 3, scheme, routed_scale=2.5).requires_grad_(False)
    block.gate.weight.normal_()
    for expert in block.experts:
        expert.w13.take(0, Stored(torch.randn(128, 128) / 8))
        expert.w2.take(0, Stored(torch.randn(128, 64) / 8))
    x = torch.randn(50, 128)
    found = block(x)
    block.packed = None
    torch.testing.assert_close(found, block(x), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["none", "int8", "int4", "bfloat16"])
def test_the_experts_of_two_ranks_add_up_to_all(scheme: str) -> None:
    """One rank has the shared experts. No token of the first rows uses an expert of the other."""
    whole = filled(MoE(64, 64, 6, 2, scheme, shared_dim=64, routed_scale=2.5))
    parts = [
        filled(MoE(64, 64, 6, 2, scheme, held=range(2), shared_dim=64, routed_scale=2.5)),
        filled(MoE(64, 64, 6, 2, scheme, held=range(2, 6), routed_scale=2.5)),
    ]
    x = torch.randn(50, 64)
    x[:7, :2], x[:7, 2:6] = 9.0, -9.0
    whole.gate.weight[:, :6] = 4 * torch.eye(6)
    for part in parts:
        part.gate.weight.copy_(whole.gate.weight)
    for rows in (x, x[:7]):
        torch.testing.assert_close(parts[0](rows) + parts[1](rows), whole(rows), atol=1e-4, rtol=1e-4)
    assert not parts[1](x[:7]).any()


def filled(block: MoE) -> MoE:
    """The block with random weights that are those of the model, whichever experts it holds."""
    block.requires_grad_(False).gate.weight.copy_(random_matrix(block.gate.n_out, block.gate.n_in, 99))
    named = [(number, block.experts[place]) for place, number in enumerate(block._held)]
    for number, expert in [*named, *([(50, block.shared_experts)] if block.shared_experts is not None else [])]:
        for part in (expert.w13, expert.w2):
            matrix = random_matrix(part.n_out, part.n_in, number)
            part.weight.copy_(matrix) if isinstance(part, Linear) else part.take(0, Stored(matrix))
    return block


def random_matrix(n_out: int, n_in: int, seed: int) -> Tensor:
    return torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(seed)) / n_in**0.5


def test_experts_may_have_layouts_that_differ() -> None:
    """As in a checkpoint of which some experts are quantized in other blocks."""
    block = MoE(64, 64, 2, 2, "int4").requires_grad_(False)
    block.gate.weight.zero_()
    torch.manual_seed(0)
    whole, blocks = Stored(torch.randn(128, 64)), encoded(torch.randn(128, 64), "Q8_0")
    block.experts[0].w13.take(0, whole)
    block.experts[1].w13.take(0, blocks)
    for expert in block.experts:
        expert.w2.take(0, Stored(torch.randn(64, 64)))
    x = torch.randn(3, 64)
    assert torch.equal(block(x), sum(0.5 * expert(x) for expert in block.experts))


@pytest.mark.each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
def test_a_token_gets_the_same_bits_beside_any_others(
    scheme: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORIA_KERNELS", variant)
    block, norm, x = compiled(scheme, 2, shared_dim=32), unit_norm(), torch.randn(70, 512)
    whole = block(x, norm, onto=x.clone())
    for size in (1, 2, 7, 33):
        assert torch.equal(torch.cat([block(part, norm, onto=part.clone()) for part in x.split(size)]), whole)
    threads = native.use_threads(3)
    try:
        assert threads == 3
        assert torch.equal(block(x, norm, onto=x.clone()), whole)
    finally:
        native.use_threads(choose_threads())


def test_numbers_that_are_none_break_their_own_token_only() -> None:
    block, x = compiled("int8", 2), torch.randn(4, 512)
    whole = block(x)
    x[1, 7], x[2] = float("nan"), float("inf")
    broken = block(x)
    assert torch.equal(broken[[0, 3]], whole[[0, 3]])
    assert not broken[[1, 2]].isfinite().any(dim=1).any()
