"""What a rank loads: its part of each tensor, cut here by hand, from every kind of file; and nothing else."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoint.open import Checkpoint, open_checkpoint
from model.checkpoint.stored import Stored
from model.config.model import ModelConfig
from model.errors import ModelError
from model.network import weights
from model.network.tensors import elsewhere
from model.network.transformer import Transformer
from model.sharding.layout import Layout, RankPlace
from model.sharding.shard import shard_of
from tests.model import pixtral, voxtral
from tests.model.checkpoint import gguf_files, quantized_files
from tests.model.checkpoint.native_files import save_native
from tests.model.driving import CPU, EXPERTS, checkpoint, random_stored, random_tensors, tiny
from tests.model.network import oracles

LAYOUTS = [Layout(2), Layout(4), Layout(1, 2), Layout(2, 2)]
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def load(
    source: Path | Checkpoint,
    place: RankPlace,
    scheme: str = "none",
    progress: Callable[[float], None] = lambda _: None,
) -> Transformer:
    """What a rank holds of a model, in float32."""
    opened = open_checkpoint(source) if isinstance(source, Path) else source
    shard = shard_of(opened.config, place)
    with torch.device("meta"):
        model = Transformer(shard.config, scheme, shard)
    tensors = opened.tensors(elsewhere(shard))
    weights.load(model, shard, opened.rotation, tensors, torch.float32, CPU, progress)
    return model


def expected(
    whole: dict[str, Tensor], config: ModelConfig, place: RankPlace, stages: Sequence[range]
) -> dict[str, Tensor]:
    """The rank's parameters, cut from those of the whole model, of which `stages` are the layers."""
    n, rank, found = place.layout.tensor, place.tensor_rank, {}
    for name, value in whole.items():
        parts = name.split(".")
        if parts[0] == "layers":
            layer = int(parts[1])
            if layer not in stages[place.stage]:
                continue
            parts[1] = str(layer - stages[place.stage].start)
        elif not (place.is_first if parts[0] in ("encoder", "tok_embeddings") else place.is_last) and not (
            parts[0] == "tok_embeddings" and config.tied_head and place.is_last
        ):
            continue
        if (cut := own_part(parts, value, config, n, rank, experts=place.layout.experts)) is not None:
            found[".".join(parts)] = cut
    return found


def own_part(
    parts: list[str], value: Tensor, config: ModelConfig, n: int, rank: int, *, experts: bool
) -> Tensor | None:
    """The part of a parameter, None if there is none; `parts` are those of its name, in which the expert may change."""
    if parts[0] == "encoder" or parts[-2] in ("attention_norm", "ffn_norm", "norm", "gate"):
        return value
    if parts[-2] in ("tok_embeddings", "output"):
        units = value.split(16)
        return torch.cat(units[rank * len(units) // n : (rank + 1) * len(units) // n])
    if experts and "experts" in parts:
        mine = config.n_experts // n
        expert = int(parts[4])
        parts[4] = str(expert - rank * mine)
        return value if expert // mine == rank else None
    if experts and "shared_experts" in parts:
        return value if rank == 0 else None
    if parts[-2] in ("wo", "w2"):
        return value.chunk(n, dim=1)[rank]
    if parts[-2] == "w13":
        return torch.cat([half.chunk(n)[rank] for half in value.chunk(2)])
    heads = value.unflatten(0, (-1, config.head_dim))
    q, k, v = heads.split([config.n_heads, config.n_kv_heads, config.n_kv_heads])
    # With more ranks than heads of keys, consecutive ranks hold the same one.
    kept = [part.repeat_interleave(max(1, n // config.n_kv_heads), dim=0).chunk(n)[rank] for part in (k, v)]
    return torch.cat([q.chunk(n)[rank], *kept]).flatten(0, 1)


def check(source: Path | Checkpoint, layout: Layout, stages: Sequence[range] = ()) -> None:
    config = source.config if isinstance(source, Checkpoint) else open_checkpoint(source).config
    n = config.n_layers
    stages = stages or ([range(n)] if layout.pipeline == 1 else [range(n // 2), range(n // 2, n)])
    whole = dict(load(source, Layout().place(0)).named_parameters(remove_duplicate=False))
    for place in layout.places():
        found = dict(load(source, place).named_parameters(remove_duplicate=False))
        wanted = expected(whole, config, place, stages)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(found[name], value), f"{name} of rank {place.rank}"


SPARSE: dict[str, Any] = {"vocab_size": 96, **EXPERTS, "n_experts": 4}


@every_layout
@pytest.mark.parametrize("changes", [{"vocab_size": 96}, {"vocab_size": 90, "tied_head": True}, SPARSE], ids=str)
def test_parts_of_every_tensor(changes: dict[str, Any], layout: Layout) -> None:
    """Dense, with a tied head and a vocabulary of no whole unit, and with experts, of which some serve every token."""
    config = tiny((5, None, None, 7), **changes)
    check(checkpoint(config), layout, [range(2), range(2, 4)] if layout.pipeline > 1 else [range(4)])


def test_whole_experts() -> None:
    check(checkpoint(tiny((None, None), **SPARSE)), Layout(2, experts=True))


def test_stages_have_their_own_numbers_of_windows_and_experts() -> None:
    """Layers 1 and 3 of 4 are sparse: each stage of two layers has one."""
    config = replace(tiny((5, None, None, 7), **SPARSE), route_every_n=2)
    check(checkpoint(replace(config, first_k_dense_replace=0)), Layout(1, 2), [range(2), range(2, 4)])


@pytest.mark.parametrize("kind", ["mistral", "llama tied"])
def test_parts_of_both_forms_of_files(kind: str, tmp_path: Path) -> None:
    """Hugging Face's q and k are in halves, Mistral's in adjacent pairs: a part has whole heads."""
    oracles.save(kind, tmp_path)
    check(tmp_path, Layout(4), [range(3)])
    if kind in oracles.NATIVE:
        check(save_native(tmp_path, tmp_path / "native"), Layout(4), [range(3)])


@pytest.mark.parametrize("kind", ["mixtral", "llama tied"])
@pytest.mark.parametrize("formats", [("F32",), ("Q4_0", "Q8_0", "Q5_0"), ("Q5_1", "F16", "Q4_1")], ids=str)
def test_parts_of_gguf_files(kind: str, formats: tuple[str, ...], tmp_path: Path) -> None:
    gguf_files.save(kind, tmp_path / "m.gguf", formats)
    check(tmp_path / "m.gguf", Layout(2))


@pytest.mark.parametrize("name", ["gptq g128", "awq g64", "ct int4 g32", "ct int8 channel", "fp8 blocks"])
def test_parts_of_quantized_safetensors(name: str, tmp_path: Path) -> None:
    """`test_parts.py` cuts the matrices of every form."""
    quantized_files.save(name, tmp_path)
    check(tmp_path, Layout(2, 2))


def test_experts_that_transformers_stores_together(tmp_path: Path) -> None:
    oracles.mixtral(num_hidden_layers=2).save_pretrained(tmp_path, save_original_format=False)
    check(tmp_path, Layout(2))
    check(tmp_path, Layout(2, experts=True))


def test_experts_of_the_first_mixtral(tmp_path: Path) -> None:
    """All experts of a layer below each other, w2 transposed."""
    oracles.mixtral(num_hidden_layers=2).save_pretrained(tmp_path / "hf")
    check(oracles.renamed(save_native(tmp_path / "hf", tmp_path / "native"), oracles.first_mixtral), Layout(2))


def test_an_encoder_is_whole_in_the_first_stage(tmp_path: Path) -> None:
    for source in (
        pixtral.save_hf("mistral3", tmp_path / "images"),
        voxtral.save_hf(tmp_path / "audio"),
        voxtral.save_native(tmp_path / "native"),
    ):
        check(source, Layout(2, 2))


FIRST, SECOND = Layout(1, 2).places()
NAME = "layers.1.feed_forward.w3.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), f"has no tensor '{NAME}'"),
        (lambda t: t.update({"layers.9.feed_forward.w3.weight": torch.zeros(1)}), "a mistral model has no place for"),
        (lambda t: t.update({NAME: torch.zeros(96, 32)}), r"w3.weight' has shape \[96, 32\], .* needs \[48, 32\]"),
    ],
    ids=["missing", "unknown", "shape"],
)
@pytest.mark.parametrize("layout", [Layout(), Layout(2), Layout(1, 2)], ids=lambda layout: layout.name)
def test_a_fault_is_found_by_a_rank(change: Any, message: str, layout: Layout) -> None:
    """By those that hold a part of the tensor; a name that no model has by all."""
    config = tiny((None, None), vocab_size=96)
    faults = []
    for place in layout.places():
        tensors = dict(random_tensors(config))
        change(tensors)
        try:
            load(checkpoint(config, [(name, Stored(tensor)) for name, tensor in tensors.items()]), place)
        except ModelError as error:
            faults.append(str(error))
    assert len(faults) == (1 if layout.pipeline > 1 and "no place" not in message else layout.size)
    assert all(re.search(message, fault) for fault in faults)


def test_a_tensor_twice_is_refused() -> None:
    config = tiny((None, None))
    twice = [*random_stored(config), *random_stored(config)]
    with pytest.raises(ModelError, match=r"the checkpoint has the tensor .* twice"):
        load(checkpoint(config, twice), SECOND)


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process has touched."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and first == "Rss:":
            total += int(rest[0]) * 1024
    return total


ROWS = {"vocab_size": 2**15, "dim": 128}
LAYERS = {"vocab_size": 64, "dim": 256, "hidden_dim": 2**11}


@pytest.mark.parametrize(("layout", "sizes"), [(Layout(4), ROWS), (Layout(1, 4), LAYERS)], ids=["rows", "layers"])
def test_a_rank_touches_its_own_bytes_of_a_file(layout: Layout, sizes: dict[str, int], tmp_path: Path) -> None:
    """Most of the file is embeddings and head, or layers. The kernel maps some neighbours of what is read."""
    config = tiny((None,) * 4, **sizes)
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps")
    params = {name: getattr(config, name) for name in (*names, "rope_theta")}
    (tmp_path / "params.json").write_text(json.dumps({**params, "max_seq_len": 512, "dtype": "float32"}))
    path = tmp_path / "consolidated.safetensors"
    save_file(dict(random_tensors(config)), path)
    touched: list[int] = []
    load(tmp_path, layout.place(1), progress=lambda done: touched.append(resident(path)) if done == 1.0 else None)
    assert 0.2 < max(touched) / path.stat().st_size < 0.6
