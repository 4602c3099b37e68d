"""GGUF files as cached directories."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import Keys

from model.checkpoint.families import read_config
from model.checkpoint.generation_config import read_generation
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import EMBEDDED, EMBEDDED_SAMPLING, resolve
from model.errors import ModelError
from tests.model.checkpoint.gguf_files import DIM, VOCAB, converted, new_file, write


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write(new_file(tmp_path / "Small.gguf"))
    return tmp_path / "Small.gguf"


def test_metadata_becomes_the_config(tmp_path: Path) -> None:
    file = new_file(tmp_path / "m.gguf")
    file.add_sliding_window(48)
    file.add_key_length(24)
    file.add_string("llama.rope.scaling.type", "yarn")
    file.add_float32("llama.rope.scaling.factor", 4.0)
    file.add_uint32("llama.rope.scaling.original_context_length", 32)
    write(file)
    config = read_config(converted(tmp_path / "m.gguf"))
    assert (config.family, config.windows, config.head_dim, config.norm_eps) == ("mistral", (48, 48), 24, 1e-5)
    assert (config.max_position, config.rope_theta, config.tied_head) == (128, 10_000.0, True)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("yarn", 4.0)
    assert config.rope_scaling.original_max_position == 32


def test_the_authors_sampling_becomes_the_default(tmp_path: Path) -> None:
    """The keys are those of llama.cpp, whose numbers have 32 bits."""
    file = new_file(tmp_path / "m.gguf")
    file.add_float32(Keys.General.SAMPLING_TEMP, 0.15)
    file.add_float32(Keys.General.SAMPLING_TOP_P, 0.95)
    file.add_int32(Keys.General.SAMPLING_TOP_K, 40)
    file.add_float32(Keys.General.SAMPLING_MIN_P, 0.05)
    file.add_float32(Keys.General.SAMPLING_PENALTY_REPEAT, 1.1)
    write(file)
    found = read_generation(converted(tmp_path / "m.gguf"))
    assert found.eos_token_ids == (1,)
    assert found.sampling == {
        "temperature": 0.15,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }


def test_the_embedded_model_has_defaults_that_suit_it(small: Path) -> None:
    assert read_generation(resolve(EMBEDDED)).sampling == EMBEDDED_SAMPLING
    assert read_generation(converted(small)).sampling == {}


def _stamps(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def test_a_warm_start_reads_no_gguf(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = converted(small)
    before = _stamps(directory)
    monkeypatch.setitem(sys.modules, "gguf", None)  # an import of it would raise
    assert converted(small) == directory
    assert _stamps(directory) == before


def test_an_entry_is_of_one_content_at_one_place(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = converted(small)
    assert directory.name.startswith("small-")
    monkeypatch.chdir(small.parent)
    assert resolve("Small.gguf", cache_dir=small.parent / "cache") == directory
    (small.parent / "link.gguf").symlink_to(small)
    link = resolve("link.gguf", cache_dir=small.parent / "cache")
    small.rename(small.parent / "Moved.gguf")
    for stale in (directory, link):
        with pytest.raises(ModelError, match=r"Small\.gguf cannot be read: No such file or directory; start again"):
            open_checkpoint(stale)
    moved = resolve("Moved.gguf", cache_dir=small.parent / "cache")
    assert [name for name, _ in open_checkpoint(moved).tensors()] == ["tok_embeddings.weight"]


def test_another_file_in_its_place_is_noticed(small: Path) -> None:
    directory = converted(small)
    data = bytearray(small.read_bytes())
    data[-1] ^= 1
    small.write_bytes(data)
    with pytest.raises(ModelError, match=r"Small\.gguf has changed since it was converted; start again"):
        open_checkpoint(directory)
    assert converted(small) != directory


@pytest.mark.parametrize("file", ["gguf.json", "tokenizer.json", "config.json", "noria.json"])
@pytest.mark.parametrize("damage", ["one bit", "truncated", "removed"])
def test_a_damaged_entry_is_rebuilt(small: Path, file: str, damage: str) -> None:
    directory = converted(small)
    target = directory / file
    good = target.read_bytes()
    if damage == "removed":
        target.unlink()
    else:
        flipped = good[:-2] + bytes([good[-2] ^ 1]) + good[-1:]
        target.write_bytes(flipped if damage == "one bit" else good[: len(good) // 2])
    assert converted(small) == directory
    assert target.read_bytes() == good


def test_the_leavings_of_a_killed_build_are_no_obstacle(small: Path) -> None:
    directory = converted(small)
    partial = directory.rename(directory.with_name(f".{directory.name}.partial"))
    (partial / "config.json").unlink()
    assert converted(small) == directory
    assert (directory / "config.json").exists()
    assert not partial.exists()


def test_processes_that_start_together_share_one_conversion(small: Path) -> None:
    code = f"""
from pathlib import Path
from model.checkpoint.resolve import EMBEDDED, EMBEDDED_SAMPLING, resolve
stages = set()
print(resolve({str(small)!r}, cache_dir=Path({str(small.parent)!r}) / "cache", progress=lambda s, f: stages.add(s)))
print(len(stages))
"""
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [child.communicate(timeout=60)[0].split() for child in children]
    assert len({directory for directory, _ in answers}) == 1
    assert sorted(stages for _, stages in answers) == ["0", "0", "0", "1"]


def test_a_cache_dir_that_is_a_file_is_one_line(small: Path) -> None:
    (small.parent / "cache").touch()
    with pytest.raises(ModelError, match=r"the converted model cannot be written: .* --cache-dir"):
        converted(small)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_tokenizer_pre("qwen2"), "pre-tokenizer 'qwen2'; Noria supports smollm, llama-bpe, gpt-2"),
        (lambda w: w.add_tokenizer_model("bert"), "a 'bert' tokenizer; Noria supports gpt2, llama"),
        (lambda w: w.add_string("llama.rope.scaling.type", "longrope"), "RoPE scaling 'longrope'"),
        (lambda w: w.add_tensor("blk.0.ssm_a.weight", np.ones(4, np.float32)), "tensor 'blk.0.ssm_a.weight'"),
        (lambda w: w.add_tensor("blk.0.attn_q.bias", np.ones(DIM, np.float32)), "tensor 'blk.0.attn_q.bias'"),
        (
            lambda w: w.add_tensor("output.weight", np.ones((VOCAB, DIM), np.int8)),
            r"'output\.weight' of kind I8; Noria reads F32, F16, Q4_0, ",
        ),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.full(3, 8, np.float32)),
            r"has 3 values in rope_freqs\.weight, expected 4 numbers above 0",
        ),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.zeros(4, np.float32)),
            r"has 4 values in rope_freqs\.weight, expected 4 numbers above 0",
        ),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.ones(4, np.float16)),
            r"has rope_freqs\.weight in F16, expected a row in F32",
        ),
        (
            lambda w: w.add_float32("llama.attention.clamp_kqv", 8.0),
            r"has 8\.0 in attention\.clamp_kqv; Noria supports 0$",
        ),
        (
            lambda w: w.add_float32("llama.attention.scale", 1.0),
            r"has 1 in attention\.scale; Noria supports 0\.353553",
        ),
        (
            lambda w: w.add_uint32("llama.attention.value_length", 4),
            r"has 4 in attention\.value_length, but 8 in key_length; Noria supports equal lengths",
        ),
        (
            lambda w: w.add_uint32("llama.expert_gating_func", 2),
            r"has 2 in expert_gating_func; Noria supports 1$",
        ),
        (
            lambda w: w.add_uint32("llama.attention.q_lora_rank", 8),
            r"the key 'attention\.q_lora_rank', which Noria does not know; use the model's safetensors",
        ),
        (
            lambda w: w.add_array("llama.attention.head_count_kv", [2, 1]),
            r"in attention\.head_count_kv, expected a number of at least 1",
        ),
        (
            lambda w: w.add_uint32("llama.rope.dimension_count", 16),
            r"has 16 in rope\.dimension_count, expected an even number up to 8",
        ),
        (
            lambda w: w.add_float32("llama.attention.temperature_scale", 0.1),
            r"has None in attention\.temperature_length, expected the value of rope\.scaling\.original_context_length",
        ),
        (lambda w: w.add_type("mmproj"), r"is of type 'mmproj'; Noria serves type model, name that file"),
    ],
)
def test_what_is_not_supported_is_named(change: object, message: str, tmp_path: Path) -> None:
    file = new_file(tmp_path / "m.gguf")
    replaced = {"pre-": "tokenizer.ggml.pre", "bert": "tokenizer.ggml.model", "_kv": "llama.attention.head_count_kv"}
    for word, key in replaced.items():
        if word in message:
            file.kv_data[0].pop(key)
    change(file)  # type: ignore[operator]
    write(file)
    with pytest.raises(ModelError, match=message):
        converted(tmp_path / "m.gguf")
    assert not list((tmp_path / "cache").glob("[!.]*"))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    for name, why in (("qwen2", ""), ("mistral4", r" \(latent attention, as in Mistral Small 4\)")):
        write(new_file(tmp_path / f"{name}.gguf", architecture=name))
        with pytest.raises(ModelError, match=f"architecture '{name}'{why}; Noria supports llama, mistral3"):
            converted(tmp_path / f"{name}.gguf")


@pytest.mark.parametrize("size", [0, 3, 100, 1000, -1000])
def test_a_truncated_file_is_one_line(small: Path, size: int) -> None:
    small.write_bytes(small.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"Small\.gguf is not a readable GGUF file") as caught:
        converted(small)
    assert "\n" not in str(caught.value)


def test_the_manifest_names_every_file(small: Path) -> None:
    directory = converted(small)
    names = {path.name for path in directory.iterdir()}
    assert set(json.loads((directory / "noria.json").read_text())) == names - {"noria.json"}


def test_a_file_with_new_times_is_read_and_serves(small: Path) -> None:
    directory = converted(small)
    os.utime(small, ns=(0, 0))
    assert open_checkpoint(directory).fingerprint
    small.write_bytes(bytes(small.stat().st_size))
    os.utime(small, ns=(0, 0))  # the time of the change itself cannot be set
    with pytest.raises(ModelError, match="has changed since it was converted"):
        open_checkpoint(directory)


def test_a_directory_without_states_is_compared_with_the_file(small: Path) -> None:
    """Versions before 5 converted so. A user may name the directory itself."""
    directory = converted(small)
    index = json.loads((directory / "gguf.json").read_text())
    del index["states"]
    (directory / "gguf.json").write_text(json.dumps(index))
    assert open_checkpoint(directory).fingerprint
    small.write_bytes(bytes(small.stat().st_size))
    with pytest.raises(ModelError, match="has changed since it was converted"):
        open_checkpoint(directory)
