"""Several ranks give what one process gives: sums, stages, every scheme."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model.sharding.layout import Layout
from tests.model.network import rank_cases
from tests.model.network.oracles import TOKENS, save
from tests.model.network.ranks import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.close()


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("shape", [(1, 5), (3, 7), (300, 257)], ids=str)
def test_sums_have_the_order_of_the_ranks(ranks: Ranks, n: int, shape: tuple[int, int]) -> None:
    """Whatever the size: in float32 another order gives other bits."""
    parts = [torch.randn(shape, generator=torch.Generator().manual_seed(rank)) for rank in range(n)]
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    for found in ranks.run(Layout(n), rank_cases.sums, parts):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("layout", [Layout(2), Layout(4)], ids=lambda layout: layout.name)
@pytest.mark.parametrize("kind", ["mistral", "llama tied"])
def test_logprobs_are_those_of_transformers(ranks: Ranks, kind: str, layout: Layout, tmp_path: Path) -> None:
    expected = save(kind, tmp_path)
    for found in ranks.run(layout, rank_cases.logits, tmp_path, "none", TOKENS, [None, 7])[layout.sampler]:
        torch.testing.assert_close(found.log_softmax(-1), expected, atol=1e-4, rtol=0)
