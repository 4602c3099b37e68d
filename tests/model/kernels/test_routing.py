"""Mixture of experts on a GPU, under Triton's interpreter: the assignment of tokens to experts, and the whole block."""

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from model.checkpoint.stored import Stored
from model.kernels import cuda as triton
from model.kernels.cuda import product, routing
from model.network.moe import MoE, route
from tests.model.kernels.triton_case import CPU, close, poisoned, small_tiles


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    yield from poisoned()


def owners(plan: routing.Assignment, block: int) -> dict[int, int]:
    """The expert of every pair in the plan; no pair is there twice."""
    found: dict[int, int] = {}
    for slots, expert in zip(plan.slots.view(-1, block).tolist(), plan.experts.tolist(), strict=True):
        for pair in slots if expert >= 0 else ():
            assert pair == -1 or pair not in found
            found[pair] = expert
    found.pop(-1, None)
    return found


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize(("n_experts", "choices", "n_rows"), [(8, 2, 1), (8, 2, 3), (5, 3, 18), (5, 2, 70), (1, 1, 18)])
def test_every_pair_is_in_a_block_of_its_expert(n_experts: int, choices: int, n_rows: int, block: int) -> None:
    """70 rows take more programs than have their counts read together."""
    torch.manual_seed(n_rows)
    logits = torch.randn(n_rows, n_experts)
    plan = routing.assign(logits, choices, block, 2.5)
    experts, shares = route(logits, choices)
    assert owners(plan, block) == dict(enumerate(experts.flatten().tolist()))
    torch.testing.assert_close(plan.shares, 2.5 * shares)


def test_all_tokens_to_one_expert_fill_its_blocks() -> None:
    plan = routing.assign(torch.tensor([[0.0, 5.0, 1.0]]).repeat(11, 1), 1, 8)
    assert plan.experts.tolist() == [1, 1, -1, -1]
    assert plan.slots[:16].tolist() == [*range(11), *[-1] * 5]


def test_numbers_that_are_none_choose_experts_that_are_there() -> None:
    nan, inf = float("nan"), float("inf")
    plan = routing.assign(torch.tensor([[nan] * 3, [-inf, nan, -inf], [inf, -inf, inf]]), 2, 8)
    assert set(owners(plan, 8)) == set(range(6))
    assert plan.experts.max() < 3


def test_equal_logits_choose_the_first() -> None:
    plan = routing.assign(torch.zeros(1, 4), 2, 8)
    assert owners(plan, 8) == {0: 0, 1: 1}
    assert plan.shares.tolist() == [[0.5, 0.5]]
    assert route(torch.zeros(3, 200), 4)[0].tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize(
    ("scheme", "n_rows", "held"), [("none", 1, None), ("none", 5, range(1, 3)), ("int4-weights", 5, None)]
)
def test_the_block_is_the_same_as_without_kernels(
    scheme: str, n_rows: int, held: range | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a rank that holds some of the experts."""
    torch.manual_seed(0)
    block = MoE(64, 128, 4, 2, scheme, held=held, shared_dim=64, routed_scale=2.5).requires_grad_(False)
    block.reserve(torch.float32, CPU)
    block.gate.weight.data = torch.randn(4, 64)
    assert block.shared_experts is not None
    for part in (block.shared_experts.w13, block.shared_experts.w2):
        part.assign_weights(part.allocate((), torch.float32, CPU))
    for expert in (*block.experts, block.shared_experts):
        for part in (expert.w13, expert.w2):
            size = part.n_out, part.n_in
            matrix = torch.randn(size) / size[1] ** 0.5
            part.weight.data.copy_(matrix) if scheme == "none" else part.take(0, Stored(matrix))
    x, onto = torch.randn(n_rows, 64), torch.randn(n_rows, 64)
    stacked, block.stacked = block.stacked, None
    expected = block(x, onto=onto.clone())
    block.stacked = stacked
    monkeypatch.setattr(triton, "serves", lambda x: True)
    monkeypatch.setattr(product, "TILES", small_tiles())
    close(block(x), expected - onto)
    assert block(x, onto=onto) is onto
    close(onto, expected)
