"""Ranks on several GPUs against one process on the CPU. It needs two devices; NORIA_TEST_DEVICE=cpu does without."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from model.sharding.layout import Layout
from tests.model.attention.attending import best
from tests.model.driving import EXPERTS, Driver, checkpoint, loaded, tiny
from tests.model.network import rank_cases
from tests.model.network.ranks import Ranks

KIND = os.environ.get("NORIA_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(KIND == "cuda" and torch.cuda.device_count() < 2, reason="there are fewer than two GPUs"),
]
TOKENS = [(7 * i + i * i) % 96 for i in range(20)]
SPARSE = {**EXPERTS, "n_experts": 4, "expert_hidden_dim": 128}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(most=2, kind=KIND)
    yield started
    started.close()


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize(
    ("layout", "changes"),
    [(Layout(2), {}), (Layout(1, 2), {}), (Layout(2), SPARSE), (Layout(2, experts=True), SPARSE)],
    ids=["tensor", "pipeline", "experts split", "experts whole"],
)
def test_two_ranks_give_the_logits_of_one(
    ranks: Ranks, layout: Layout, changes: Mapping[str, Any], deterministic: bool
) -> None:
    config = tiny((None, 9), dim=64, head_dim=32, hidden_dim=256, vocab_size=96, **changes)
    expected = Driver(loaded(checkpoint(config)), best()).whole(TOKENS)
    results = ranks.run(layout, rank_cases.in_company, config, "none", TOKENS, deterministic=deterministic)
    for found in results[layout.sampler]:
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
