"""Layers for the stages of a pipeline, by hand and beside every possible division."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from model.config import ModelConfig
from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from model.sharding.stages import StoredBits, stages
from tests.model.driving import tiny
from tests.model.sharding.shapes import MISTRAL, MIXTRAL


def test_embeddings_and_head_count() -> None:
    """Three stages of 8 layers and two tables, all of one size: 2 + 1, 3, and 3 + 1."""
    config = tiny((None,) * 8)
    assert config.layer_parameters(0) == 7744 == 242 * 32
    assert stages(replace(config, vocab_size=242), 3) == [range(2), range(2, 5), range(5, 8)]


def test_bytes_count() -> None:
    """8 layers, and tables of the size of one: 3 layers and what weighs 3 more, beside 5 layers and the head."""
    config = replace(tiny((None,) * 8), vocab_size=242)
    wide, encoder = StoredBits(8, 24, 8), StoredBits(8, 8, 8, encoder=2 * 7744 * 8)
    assert stages(config, 2, wide) == stages(config, 2, encoder) == [range(3), range(3, 8)]
    of_two = replace(encoder, encoder=encoder.encoder // 2)  # each rank has a half of the layers, and the whole encoder
    assert shard_of(replace(config, vocab_size=256), Layout(2, 2).place(0), of_two).layers == range(3)


@pytest.mark.parametrize(
    ("config", "n", "counts"),
    [
        # a layer of Mistral 7B has 218,112,000 weights, embeddings and head 131,072,000 each: 0.6 layers
        (MISTRAL, 1, [32]),
        (MISTRAL, 2, [16, 16]),
        (MISTRAL, 3, [10, 11, 11]),  # 10.6, 11 and 11.6 layers; 11, 11, 10 are 11.6, 11 and 10.6
        (MISTRAL, 4, [8, 8, 8, 8]),
        # Llama 3's vocabulary: tables of 525,336,576 weights, 2.4 layers each
        (replace(MISTRAL, vocab_size=128_256), 4, [7, 9, 9, 7]),  # 9.4, 9, 9 and 9.4 layers
        # a layer of Mixtral has 1,451,270,144 weights: tables hardly matter
        (MIXTRAL, 4, [8, 8, 8, 8]),
        (MIXTRAL, 32, [1] * 32),
    ],
)
def test_published_shapes(config: ModelConfig, n: int, counts: list[int]) -> None:
    found = stages(config, n)
    assert [len(stage) for stage in found] == counts
    assert [layer for stage in found for layer in stage] == list(range(32))


@pytest.mark.parametrize("vocab_size", [16, 200, 700])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_no_division_has_a_smaller_largest_stage(n: int, vocab_size: int) -> None:
    """Every third layer has experts, and is far larger than the others."""
    config = tiny((None,) * 9, vocab_size=vocab_size, n_experts=6, n_experts_per_token=2, route_every_n=3)
    sizes = [config.layer_parameters(layer) for layer in range(9)]
    assert len(set(sizes)) == 2
    table = config.vocab_size * config.dim
    sizes[0] += table
    sizes[-1] += table

    def largest(stops: tuple[int, ...]) -> int:
        bounds = (0, *stops, 9)
        return max(sum(sizes[a:b]) for a, b in pairwise(bounds))

    found = tuple(stage.stop for stage in stages(config, n)[:-1])
    assert largest(found) == min(map(largest, combinations(range(1, 9), n - 1)))
