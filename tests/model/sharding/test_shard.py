"""What a rank holds of a model: sizes by hand, parts that cover every tensor once, and layouts that do not fit."""

from dataclasses import replace
from itertools import pairwise

import pytest

from model.config import ModelConfig, StageConfig
from model.errors import OptionError
from model.sharding.layout import Layout
from model.sharding.shard import Part, Shard, shard_of
from tests.model.driving import EXPERTS, tiny
from tests.model.sharding.shapes import MISTRAL, MIXTRAL


def part(shard: Shard, name: str) -> Part:
    found = shard.part(f"layers.{shard.layers.start}.{name}.weight")
    assert found is not None
    return found


def test_a_rank_of_mistral_7b() -> None:
    """The third of 2 x 2: layers 16 to 31, heads 0 to 15 with the first 4 heads of keys, half of each feed-forward."""
    shard = shard_of(MISTRAL, Layout(2, 2).place(2))
    own = shard.config
    assert (own.n_layers, own.n_heads, own.n_kv_heads, own.hidden_dim) == (16, 16, 4, 7168)
    assert (own.dim, own.vocab_size, own.windows, own.stage) == (4096, 32000, (4096,) * 16, StageConfig(16, (4096,)))
    assert (shard.layers, shard.vocab) == (range(16, 32), range(16000))
    assert part(shard, "attention.wq") == Part(rows=range(2048))
    assert part(shard, "attention.wk") == part(shard, "attention.wv") == Part(rows=range(512))
    assert part(shard, "attention.wo") == Part(columns=range(2048))
    assert part(shard, "feed_forward.w1") == Part(rows=range(7168))
    assert part(shard, "feed_forward.w2") == Part(columns=range(7168))
    assert shard.part("output.weight") == Part(rows=range(16000))
    assert shard.part("norm.weight") == Part()
    assert shard.part("tok_embeddings.weight") is None
    assert shard.part("layers.15.attention.wq.weight") is None


def test_more_ranks_than_heads_of_keys() -> None:
    """16 ranks of Mistral 7B have 2 heads each, and two neighbours hold the same one of 8 heads of keys."""
    for rank in range(16):
        shard = shard_of(MISTRAL, Layout(16).place(rank))
        assert (shard.config.n_heads, shard.config.n_kv_heads) == (2, 1)
        first = rank // 2 * 128
        assert part(shard, "attention.wv") == Part(rows=range(first, first + 128))
        assert part(shard, "attention.wq") == Part(rows=range(rank * 256, rank * 256 + 256))


def test_experts_in_parts_or_whole() -> None:
    split, whole = (shard_of(MIXTRAL, Layout(4, experts=experts).place(1)) for experts in (False, True))
    assert (split.config.expert_dim, whole.config.expert_dim) == (3584, 14336)
    assert (split.experts, whole.experts) == (range(8), range(2, 4))
    assert part(split, "feed_forward.experts.5.w2") == Part(columns=range(3584, 7168))
    assert whole.part("layers.0.feed_forward.experts.5.w2.weight") is None
    assert part(whole, "feed_forward.experts.3.w2") == part(whole, "feed_forward.gate") == Part()


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
