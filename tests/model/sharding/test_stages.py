"""Layers for the stages of a pipeline, beside every possible division."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from model.sharding.stages import StoredBits, stages
from tests.model.driving import tiny


def test_bytes_count() -> None:
    """8 layers, and tables of the size of one: 3 layers and what weighs 3 more, beside 5 layers and the head."""
    config = replace(tiny((None,) * 8), vocab_size=242)
    wide, encoder = StoredBits(8, 24, 8), StoredBits(8, 8, 8, encoder=2 * 7744 * 8)
    assert stages(config, 2, wide) == stages(config, 2, encoder) == [range(3), range(3, 8)]
    of_two = replace(encoder, encoder=encoder.encoder // 2)  # each rank has a half of the layers, and the whole encoder
    assert shard_of(replace(config, vocab_size=256), Layout(2, 2).place(0), of_two).layers == range(3)


@pytest.mark.parametrize("vocab_size", [16, 200, 700])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_no_division_has_a_smaller_largest_stage_or_stages_more_alike(n: int, vocab_size: int) -> None:
    """Every third layer has experts, and is far larger than the others."""
    config = tiny((None,) * 9, vocab_size=vocab_size, n_experts=6, n_experts_per_token=2, route_every_n=3)
    sizes = [config.layer_parameters(layer) for layer in range(9)]
    assert len(set(sizes)) == 2
    table = config.vocab_size * config.dim
    sizes[0] += table
    sizes[-1] += table

    def weight(stops: tuple[int, ...]) -> tuple[int, int]:
        """The largest stage, then how unlike the stages are."""
        found = [sum(sizes[a:b]) for a, b in pairwise((0, *stops, 9))]
        return max(found), sum(size**2 for size in found)

    found = tuple(stage.stop for stage in stages(config, n)[:-1])
    assert weight(found) == min(map(weight, combinations(range(1, 9), n - 1)))
