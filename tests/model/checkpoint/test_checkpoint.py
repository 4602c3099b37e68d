"""Directories as streams of tensors. Oracle: the state_dict that was saved."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from model.checkpoint import files as checkpoint_files
from model.checkpoint.config import read_config
from model.checkpoint.files import fingerprint
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import default_name, resolve
from model.errors import ModelError
from tests.model.checkpoint import gguf_files
from tests.model.checkpoint.gguf_files import SIZES

NATIVE = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 4, "norm_eps": 1e-5, "vocab_size": 16}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


def _native(directory: Path, weights: dict[str, torch.Tensor], **changes: object) -> Path:
    (directory / "params.json").write_text(json.dumps({**NATIVE, **changes}))
    save_file(weights, directory / "consolidated.safetensors")
    return directory


def test_a_checkpoint_is_known_by_its_weights(tmp_path: Path) -> None:
    prints = []
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        (tmp_path / name).mkdir()
        weights = {"norm.weight": torch.full((8,), value)}
        prints.append(open_checkpoint(_native(tmp_path / name, weights)).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_another_block_of_a_large_file_is_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**27)
        found = [fingerprint(path)]
        for first in (0, 1_234_567, 2**27 - 2**21):
            file.seek(first)
            file.write(b"\1" * 2**21)
            file.flush()
            found.append(fingerprint(path))
        file.truncate(2**27 - 1)
    found.append(fingerprint(path))
    assert len({*found}) == 5


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_another_value_in_any_tensor_of_a_large_file_is_another_fingerprint(
    kind: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fine-tune may change few tensors, and small ones. Small files are read here as large ones are."""
    monkeypatch.setattr(checkpoint_files, "WHOLE_BYTES", 0)
    monkeypatch.setattr(checkpoint_files, "SAMPLE_BYTES", 4)
    if kind == "gguf":
        source = tmp_path / "model.gguf"
        gguf_files.save("llama", source)
        places = [(source, tensor.data_offset, tensor.n_bytes) for tensor in GGUFReader(source).tensors]
    else:
        source = tmp_path
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
        for weight in model.parameters():
            torch.nn.init.normal_(weight)
        model.save_pretrained(source, max_shard_size="20KB")
        places = [place for path in source.glob("*.safetensors") for place in tensors_in(path)]
    assert len(places) == 2 * 9 + 3
    before = open_checkpoint(source).fingerprint
    for path, start, n_bytes in places:
        whole = path.read_bytes()
        at = start + place % n_bytes
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert open_checkpoint(source).fingerprint != before
        path.write_bytes(whole)
        assert open_checkpoint(source).fingerprint == before


def tensors_in(path: Path) -> Iterator[tuple[Path, int, int]]:
    """Where the bytes of each tensor are, found by their values."""
    whole = path.read_bytes()
    for tensor in load_file(path).values():
        data = tensor.numpy().tobytes()
        assert whole.count(data) == 1
        yield path, whole.index(data), len(data)


def test_every_weight_of_a_sharded_checkpoint_comes_once_under_its_native_name(llama: Path) -> None:
    assert len(list(llama.glob("model-*-of-*.safetensors"))) > 2
    checkpoint = open_checkpoint(llama)
    pairs = list(checkpoint.tensors())
    tensors = dict(pairs)
    assert len(pairs) == len(tensors) == 2 * 9 + 3
    assert checkpoint.rotation == "half"
    assert sum(stored.values.numel() for stored in tensors.values()) == checkpoint.config.n_parameters


def test_native_shards(tmp_path: Path) -> None:
    _native(tmp_path, {"norm.weight": torch.ones(8)})
    (tmp_path / "consolidated.safetensors").rename(tmp_path / "consolidated.00.safetensors")
    save_file({"output.weight": torch.ones(16, 8)}, tmp_path / "consolidated.01.safetensors")
    assert [name for name, _ in open_checkpoint(tmp_path).tensors()] == ["norm.weight", "output.weight"]


@pytest.mark.parametrize("declared", [True, False])
def test_the_files_decide_whether_the_head_is_tied(declared: bool, tmp_path: Path) -> None:
    """A file with the head has its own. Before there are files, the configuration decides."""
    weights = {"tok_embeddings.weight": torch.ones(16, 8)}
    checkpoint = open_checkpoint(_native(tmp_path, weights, tied_embeddings=declared))
    assert checkpoint.config.tied_head
    checkpoint = open_checkpoint(_native(tmp_path, {**weights, "output.weight": torch.zeros(16, 8)}))
    assert not checkpoint.config.tied_head
    assert [name for name, _ in checkpoint.tensors()] == ["output.weight", "tok_embeddings.weight"]
    (tmp_path / "consolidated.safetensors").unlink()
    _native(tmp_path, weights, tied_embeddings=declared)
    (tmp_path / "consolidated.safetensors").unlink()
    assert read_config(tmp_path).tied_head is declared


@pytest.mark.parametrize("keep_index", [True, False])
def test_a_missing_shard_is_named(llama: Path, keep_index: bool) -> None:
    sorted(llama.glob("model-*.safetensors"))[1].unlink()
    if not keep_index:
        (llama / "model.safetensors.index.json").unlink()
    expected = "shard model-00002-of-" if keep_index else r"has only \d of its \d shards"
    with pytest.raises(ModelError, match=expected):
        open_checkpoint(llama)


def test_resolve_names_what_it_found(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no model at '/nowhere/x': expected a directory, a \.gguf"):
        resolve("/nowhere/x")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"expected config\.json or params\.json .* found pytorch_model\.bin"):
        resolve(str(tmp_path))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a file; expected a \.gguf file or a model directory"):
        resolve(str(tmp_path / "pytorch_model.bin"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"has no weights: expected \*\.safetensors, found config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"the model's config\.json cannot be read: Expecting property name"):
        read_config(tmp_path)


def test_served_name_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert default_name("smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert default_name(str(folder)) == default_name(f"{folder}/") == default_name(".") == "My-Model"
    assert default_name("mistralai/Mistral-7B-v0.1") == "mistralai/Mistral-7B-v0.1"
    assert default_name("some/where/Model.Q4_1.GGUF") == "model.q4_1"
