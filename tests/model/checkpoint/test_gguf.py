"""GGUF files as configurations; what is refused."""

from pathlib import Path

import numpy as np
import pytest
from gguf import Keys

from model.checkpoint.config import read_config
from model.checkpoint.embedded import EMBEDDED, EMBEDDED_SAMPLING
from model.checkpoint.generation_config import read_generation
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.model_files import model_files
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import resolve
from model.errors import ModelError
from tests.model.checkpoint.gguf_files import DIM, VOCAB, new_file, write


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write(new_file(tmp_path / "Small.gguf"))
    return tmp_path / "Small.gguf"


def test_the_authors_sampling_becomes_the_default(tmp_path: Path) -> None:
    """The keys are those of llama.cpp, whose numbers have 32 bits."""
    file = new_file(tmp_path / "m.gguf")
    file.add_float32(Keys.General.SAMPLING_TEMP, 0.15)
    file.add_float32(Keys.General.SAMPLING_TOP_P, 0.95)
    file.add_int32(Keys.General.SAMPLING_TOP_K, 40)
    file.add_float32(Keys.General.SAMPLING_MIN_P, 0.05)
    file.add_float32(Keys.General.SAMPLING_PENALTY_REPEAT, 1.1)
    write(file)
    found = read_generation(tmp_path / "m.gguf")
    assert found.eos_token_ids == (1,)
    assert found.sampling == {"temperature": 0.15, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}


def test_the_embedded_model_has_defaults_that_suit_it(small: Path) -> None:
    assert read_generation(resolve(EMBEDDED)).sampling == EMBEDDED_SAMPLING
    assert read_generation(small).sampling == {}


def test_a_file_is_found_by_its_path_or_a_link(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent)
    (small.parent / "link.gguf").symlink_to(small)
    assert resolve("Small.gguf") == resolve("link.gguf") == small
    assert [name for name, _ in open_checkpoint(small).tensors()] == ["tok_embeddings.weight"]


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
        (lambda w: w.add_float32("llama.attention.scale", 1.0), r"has 1 in attention\.scale; Noria supports 0\.353553"),
        (
            lambda w: w.add_uint32("llama.attention.value_length", 4),
            r"has 4 in attention\.value_length, but 8 in key_length; Noria supports equal lengths",
        ),
        (lambda w: w.add_uint32("llama.expert_gating_func", 2), r"has 2 in expert_gating_func; Noria supports 1$"),
        (
            lambda w: w.add_uint32("llama.attention.q_lora_rank", 8),
            r"the key 'attention\.q_lora_rank', which Noria does not know; use the model's safetensors",
        ),
        (lambda w: w.add_uint32("llama.attention.key_length", 0), r"at least 1 in attention\.key_length, it has 0"),
        (lambda w: w.add_string("llama.attention.key_length", "x"), r"at least 1 in attention\.key_length, it has 'x'"),
        (lambda w: w.add_string("llama.hidden_act", "gelu"), r"the key 'hidden_act', which Noria does not know"),
        (
            lambda w: w.add_array("llama.attention.head_count_kv", [2, 1]),
            r"a whole number of at least 1 in attention\.head_count_kv, it has \[2, 1\]",
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
        read_config(tmp_path / "m.gguf") if "_kv" in message else model_files(tmp_path / "m.gguf")


def test_an_unknown_key_that_changes_no_computation_is_a_line_for_the_log(tmp_path: Path) -> None:
    file = new_file(tmp_path / "m.gguf")
    file.add_uint32("llama.colour", 3)
    write(file)
    assert open_gguf(tmp_path / "m.gguf").doubts == ("m.gguf has the key 'colour', which Noria does not use",)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    for name, why in (("qwen2", ""), ("mamba2", r" \(a state space model, as Codestral Mamba\)")):
        write(new_file(tmp_path / f"{name}.gguf", architecture=name))
        with pytest.raises(ModelError, match=f"architecture '{name}'{why}; Noria supports llama, mistral3"):
            model_files(tmp_path / f"{name}.gguf")
