"""Layers for the stages of a pipeline, by hand."""

from dataclasses import replace

import pytest

from model.config import ModelConfig
from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from model.sharding.stages import StoredBits, stages
from tests.model.driving import tiny
from tests.model.sharding.shapes import MISTRAL, MIXTRAL


def test_embeddings_and_head_count() -> None:
    """Three stages of 8 layers and two tables, all of one size: 2 + 1, 4, and 2 + 1."""
    config = tiny((None,) * 8)
    assert config.layer_parameters(0) == 7744 == 242 * 32
    assert stages(replace(config, vocab_size=242), 3) == [range(2), range(2, 6), range(6, 8)]


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
        (MISTRAL, 3, [10, 12, 10]),  # 10.6, 12 and 10.6 layers
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
def test_no_stage_exceeds_its_share_by_more_than_a_layer(n: int, vocab_size: int) -> None:
    """Every third layer has experts, and is far larger than the others."""
    config = tiny((None,) * 9, vocab_size=vocab_size, n_experts=6, n_experts_per_token=2, route_every_n=3)
    sizes = [config.layer_parameters(layer) for layer in range(9)]
    assert len(set(sizes)) == 2
    sizes[0] += config.vocab_size * config.dim
    sizes[-1] += config.vocab_size * config.dim
    assert max(sum(sizes[layer] for layer in stage) for stage in stages(config, n)) <= sum(sizes) / n + max(sizes)
