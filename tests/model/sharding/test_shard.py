"""What a rank holds of a model: parts that cover every weight once, and layouts that do not fit."""

from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest

from model.config.model import ModelConfig
from model.errors import OptionError
from model.network.tensors import places
from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from tests.model.driving import EXPERTS, tiny
from tests.model.sharding.shapes import MISTRAL, MIXTRAL

CONFIGS = {
    "dense": tiny((5, None, None, 7), vocab_size=90),
    "tied": tiny((5, None), vocab_size=90, tied_head=True),
    "experts": tiny((5, None, None, 7), vocab_size=90, **{**EXPERTS, "n_experts": 4}),
}


LAYOUTS = (Layout(), Layout(2), Layout(1, 2), Layout(2, 2))
CASES = [(name, layout) for name in CONFIGS for layout in LAYOUTS] + [("experts", Layout(2, 2, experts=True))]


@pytest.mark.parametrize(("name", "layout"), CASES, ids=str)
def test_the_ranks_hold_every_weight(name: str, layout: Layout) -> None:
    """Together they hold each weight once, and the norms and gates of a layer as often as there are ranks."""
    config = CONFIGS[name]
    shards = [shard_of(config, place) for place in layout.places()]
    held = sum(shard.n_layer_parameters for shard in shards)
    tensors = [place.shape for shard in shards for name, place in places(shard) if name.startswith("layers.")]
    assert held == sum(map(prod, tensors))
    n_sparse = sum(map(config.is_sparse, range(config.n_layers)))
    copied = config.n_layers * 2 * config.dim + n_sparse * config.n_experts * config.dim
    layers = sum(map(config.layer_parameters, range(config.n_layers)))
    assert held == layers + (layout.tensor - 1) * copied
    tables = sum(shard.n_table_parameters for shard in shards if shard.place.is_first)
    assert tables == config.vocab_size * config.dim
    for stage in range(layout.pipeline):
        vocab = [shard.vocab for shard in shards if shard.place.stage == stage]
        assert (vocab[0].start, vocab[-1].stop) == (0, 90)
        assert all(before.stop == after.start for before, after in pairwise(vocab))


def test_embeddings_of_a_tied_head() -> None:
    """The last stage reads them. It keeps them as they are only where the head is not a quantized copy."""
    first, last = (shard_of(CONFIGS["tied"], place) for place in Layout(1, 2).places())
    assert first.has_embeddings
    assert last.has_embeddings
    assert [shard.keeps_embeddings(quantizes_head=True) for shard in (first, last)] == [True, False]
    assert [shard.keeps_embeddings(quantizes_head=False) for shard in (first, last)] == [True, True]


def refused(config: ModelConfig, layout: Layout) -> str:
    with pytest.raises(OptionError) as caught:
        shard_of(config, layout.place(0))
    return str(caught.value)


def test_sizes_that_do_not_fit_and_those_that_do() -> None:
    """Powers of two divide 32 heads and 14336; 64 does not divide the heads."""
    assert refused(MISTRAL, Layout(3)) == (
        "--tensor-parallel-size 3 does not divide 32 heads and 8 heads of keys and values and hidden_dim 14336; "
        "choose one of: 1, 2, 4, 8, 16, 32"
    )
    assert "5 does not divide 32 heads and 8 heads" in refused(MISTRAL, Layout(5))
    assert "does not divide 8 experts; choose one of: 1, 2, 4, 8" in refused(MIXTRAL, Layout(16, experts=True))
    few = replace(MISTRAL, vocab_size=48)
    assert "4 does not divide a vocabulary of 48 in parts of 16; choose one of: 1, 2" in refused(few, Layout(4))
    assert refused(MISTRAL, Layout(1, 33)) == (
        "--pipeline-parallel-size 33 is more than the model's 32 layers; choose at most 32"
    )
    assert "needs a model with experts" in refused(MISTRAL, Layout(2, experts=True))
    assert "--tensor-parallel-size of at least 2" in refused(MIXTRAL, Layout(1, experts=True))


def test_names_of_layouts() -> None:
    layouts = (Layout(), Layout(2), Layout(1, 3), Layout(4, 2, experts=True))
    assert [layout.name for layout in layouts] == ["single", "tp2", "pp3", "tp4 pp2 ep"]
    places = Layout(2, 3).places()
    assert [(place.stage, place.tensor_rank) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [place.before for place in places] == [None, None, 0, 1, 2, 3]
    assert [place.after for place in places] == [2, 3, 4, 5, None, None]
    assert [place.rank for place in places if place.samples] == [4]
