"""Memory plans of ranks: by hand for Mistral 7B and Mixtral, and beside what ranks allocate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model import loading
from model.checkpoint.config import read_config
from model.checkpoint.configs.params import EXPERTS as FIELDS
from model.config.model import ModelConfig
from model.kernels.cpu import native
from model.linear.schemes import NAMES, SCHEMES, Scheme
from model.memory.plan import MemoryPlan, RankNeed, make_plan
from model.memory.remedies import lack, remedies
from model.network import weights
from model.network.tensors import elsewhere
from model.network.transformer import Transformer
from model.options import RunnerOptions
from model.setup import choose
from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from tests.model.driving import CPU, EXPERTS, checkpoint, storages, tiny
from tests.published import MISTRAL_7B as MISTRAL

GIB = 2**30
ATTENTION, FEED_FORWARD, NORMS, TABLE = 41_943_040, 176_160_768, 2 * 4096, 131_072_000
"""Weights of a layer of Mistral 7B, and of its embeddings."""


def plan(
    directory: Path, config: dict[str, Any], layout: Layout, memory: int | None = None, **changes: Any
) -> MemoryPlan:
    (directory / "config.json").write_text(json.dumps(config))
    return make_plan(directory, options(layout, **changes), memory)


def options(layout: Layout, **changes: Any) -> RunnerOptions:
    sizes = {"tensor_parallel_size": layout.tensor, "pipeline_parallel_size": layout.pipeline}
    values = {"device": "cuda", "max_sequences": 64, "max_step_tokens": 512, "expert_parallel": layout.experts}
    return RunnerOptions("", **{**sizes, **values, **changes})


def test_mistral_7b_on_2_times_2_gpus(tmp_path: Path) -> None:
    """Each rank has half of 16 layers and of one table. A token takes a quarter of 128 KiB."""
    made = plan(tmp_path, MISTRAL, Layout(2, 2), 8 * GIB)
    half = 16 * ((ATTENTION + FEED_FORWARD) // 2 + NORMS) + TABLE // 2
    first, last = 2 * half, 2 * (half + 4096)
    assert [rank.weights for rank in made.ranks] == [first, first, last, last]
    assert (made.weights, made.token, made.layout, made.parameters) == (last, 32_768, "tp2 pp2", 7_241_732_096)
    cache = int(0.9 * 8 * GIB) - first - made.step
    assert made.ranks[0] == RankNeed(0, 0, 0, 16, embeddings=True, head=False, weights=first, token=32_768, cache=cache)
    assert [(rank.first_layer, rank.layers, rank.stage) for rank in made.ranks[1:]] == [(0, 16, 0), *[(16, 16, 1)] * 2]
    assert [(rank.embeddings, rank.head) for rank in made.ranks] == [(True, False)] * 2 + [(False, True)] * 2
    # the rank with the last norm has 8 KiB less than the others: it decides how many pages of 1 MiB all have
    assert [pool.n_pages for pool in made.pools] == [(cache - 8192) // 2**20]
    # rows of x, norm(x), half of gate, up and product; logits are those of the whole vocabulary
    assert made.step == 512 * (2 * 4096 + 3 * 7168) * 2 + (2**23 // 32000) * 32000 * 4 * 8 + 2**29


def test_int8_on_a_cpu_shares_the_hosts_memory(tmp_path: Path) -> None:
    """A quarter of what is free beside the weights is for keys and values, on each rank of its half."""
    made = plan(tmp_path, MISTRAL, Layout(1, 2), 16 * GIB, device="cpu")
    layers = 16 * (ATTENTION + FEED_FORWARD + NORMS)
    scales = 32 / 4096 / 8
    first, last = layers + layers * scales + 2 * TABLE, (layers + TABLE + 4096) * (1 + scales)
    assert [rank.weights for rank in made.ranks] == [first, last]
    assert made.memory == 8 * GIB
    assert [rank.cache for rank in made.ranks] == [int((8 * GIB - held) * 0.25) for held in (first, last)]


def test_more_gpus_are_a_remedy(tmp_path: Path) -> None:
    """13.5 GiB of weights: two of 10 GiB hold them. A context of 32768 needs 4 GiB more, which four GPUs hold."""
    made = plan(tmp_path, MISTRAL, Layout(), 10 * GIB)
    assert lack(made, options(Layout())) == "the weights need 13.49 GiB, the memory is 10.00 GiB"
    assert "--tensor-parallel-size 2" in list(remedies(tmp_path, options(Layout()), made))
    long = options(Layout(), max_model_len=32768)
    assert "--tensor-parallel-size 4" in list(remedies(tmp_path, long, make_plan(tmp_path, long, 8 * GIB)))
    two = options(Layout(2))
    made = make_plan(tmp_path, two, 4 * GIB)
    assert lack(made, two) == "the weights of a rank need 6.74 GiB, the memory is 4.00 GiB"
    *_, more, memory = remedies(tmp_path, two, made)
    assert more == "--tensor-parallel-size 8"  # 4 ranks have 3.4 GiB of weights and 0.9 GiB for a step
    assert memory.endswith(" GiB of memory on each GPU")
    gigabytes = float(memory.split()[0])
    assert make_plan(tmp_path, two, int(gigabytes * GIB)).served == 32768


def test_a_cpus_memory_is_no_more_with_more_ranks(tmp_path: Path) -> None:
    made = plan(tmp_path, MISTRAL, Layout(2), 4 * GIB, device="cpu")
    requested = options(Layout(2), device="cpu")
    assert lack(made, requested).startswith("the weights of a rank need 3.4")
    *_, memory = ways = list(remedies(tmp_path, requested, made))
    assert not any("parallel" in way for way in ways)
    assert make_plan(tmp_path, requested, int(float(memory.split()[0]) * GIB)).served == 32768


FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {},
    "tied": {"tied_head": True},
    "experts": {**EXPERTS, "n_experts": 4, "expert_hidden_dim": 256},
}
CASES = [("mistral", Layout(2)), ("tied", Layout()), ("tied", Layout(1, 2)), ("experts", Layout())]
CASES += [("experts", Layout(2, 2)), ("experts", Layout(2, experts=True))]


def write(config: ModelConfig, directory: Path) -> None:
    """The configuration as a native file."""
    sizes = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps", "dtype")
    raw = {name: getattr(config, name) for name in sizes}
    raw |= {"max_seq_len": config.max_position, "rope_theta": 1e4, "tied_embeddings": config.tied_head}
    if config.n_experts:
        raw["moe"] = {key: getattr(config, field) for key, field in FIELDS.items()}
    (directory / "params.json").write_text(json.dumps({**raw, "sliding_window": list(config.windows)}))
    assert replace(read_config(directory), family=config.family) == config


@pytest.mark.each
@pytest.mark.parametrize(("family", "layout"), CASES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
@pytest.mark.skipif(native.kernels() is None, reason="takes compiled kernels for granted")
def test_the_plan_is_what_ranks_load(tmp_path: Path, scheme: Scheme, family: str, layout: Layout) -> None:
    sizes = {"dim": 256, "n_heads": 8, "n_kv_heads": 4, "head_dim": 32, "hidden_dim": 512, "vocab_size": 512}
    config = tiny((None,) * 4, **sizes, **FAMILIES[family])
    write(config, tmp_path)
    by_name = {"quantize": scheme.name} if scheme.name in NAMES else {"dtype": scheme.name}
    made = make_plan(tmp_path, options(layout, device="cpu", **by_name), None)
    dtype = getattr(torch, made.dtype)
    source = checkpoint(config)
    for place, rank in zip(layout.places(), made.ranks, strict=True):
        shard = shard_of(config, place)
        with torch.device("meta"):
            model = Transformer(shard.config, scheme.name, shard)
        tensors = source.tensors(elsewhere(shard))
        activations = torch.float32 if scheme.compiled else dtype
        weights.load(model, shard, source.rotation, tensors, activations, CPU, lambda _: None, embeddings=dtype)
        assert storages(model) == pytest.approx(rank.weights, rel=0.02)


@pytest.mark.skipif(native.kernels() is None, reason="takes compiled kernels for granted")
def test_stages_are_alike_in_bytes(tmp_path: Path) -> None:
    """6 layers, tables of the size of 2. In int8 the embeddings weigh 4 layers: they take 2 bytes for each weight."""
    sizes = {"dim": 256, "n_heads": 8, "n_kv_heads": 4, "head_dim": 32, "hidden_dim": 512, "vocab_size": 4608}
    config = tiny((None,) * 6, **sizes)
    write(config, tmp_path)
    for scheme, counts in (("int8", [2, 4]), ("none", [3, 3])):
        requested = options(Layout(1, 2), device="cpu", quantize=scheme)
        shards = [choose(checkpoint(config), requested, place).shard for place in requested.layout.places()]
        assert [len(shard.layers) for shard in shards] == counts
        assert [rank.layers for rank in make_plan(tmp_path, requested, None).ranks] == counts


@pytest.mark.parametrize("layout", [Layout(2), Layout(1, 2), Layout(2, 2)], ids=lambda layout: layout.name)
@pytest.mark.parametrize("values", [{}, {"max_model_len": 100}, {"cache_memory": 2**18, "quantize": "int4"}], ids=str)
@pytest.mark.skipif(native.kernels() is None, reason="takes compiled kernels for granted")
def test_ranks_size_their_caches_as_planned(
    tmp_path: Path, layout: Layout, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stage has layers of only one of two windows; the ranks serve what each of them can hold."""
    config = tiny((5, 5, 5, None), dim=64, hidden_dim=128, n_heads=4, head_dim=16, vocab_size=512)
    write(config, tmp_path)
    requested = options(layout, device="cpu", **values)
    total = 1_300_000 * layout.size
    monkeypatch.setattr(loading, "free_bytes", lambda _: total)
    setups = [choose(checkpoint(config), requested, place) for place in layout.places()]
    sizes = [loading.size(setup, None, None, 0, layout.size) for setup in setups]
    made = make_plan(tmp_path, requested, total)
    length = min(size.length for size in sizes)
    assert (made.served, [rank.cache for rank in made.ranks]) == (length, [size.cache for size in sizes])
    pools = [setup.pool_sizes.pools(length, size.cache) for setup, size in zip(setups, sizes, strict=True)]
    assert [pool.n_pages for pool in made.pools] == [
        min(pool.n_pages for pool in each) for each in zip(*pools, strict=True)
    ]
