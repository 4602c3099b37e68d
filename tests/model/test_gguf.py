"""GGUF files as cached HF directories. Oracles: transformers on the result, torch's bf16, the model a file holds."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from model.checkpoint.gguf import to_bfloat16
from model.checkpoint.resolve import resolve
from model.errors import ModelError
from model.families import read_config

DIM, HIDDEN, HEADS, KV_HEADS, VOCAB = 32, 64, 4, 2, 20
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def _permute(weights: np.ndarray, n_heads: int) -> np.ndarray:
    """Half-split to adjacent rows, as llama.cpp's converter writes them."""
    return weights.reshape(n_heads, 2, weights.shape[0] // n_heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def _writer(path: Path, model: torch.nn.Module | None = None, architecture: str = "llama") -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    tokens = ["<s>", "</s>", *"abcdefghijklmnopq", "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * 18)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in _tensors(model):
        writer.add_tensor(name, tensor)
    return writer


def _tensors(model: torch.nn.Module | None) -> list[tuple[str, np.ndarray]]:
    if model is None:
        return [("token_embd.weight", np.ones((VOCAB, DIM), np.float32))]
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"mlp.gate": "ffn_gate_inp"}
    found = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    found |= {"lm_head.weight": "output.weight"}
    result = []
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if name in found:
            result.append((found[name], values))
            continue
        _, _, layer, *rest = name.split(".")
        if "experts" in rest:
            parts = np.split(values, 2, axis=1) if rest[-1] == "gate_up_proj" else [values]
            kinds = ("gate", "up") if rest[-1] == "gate_up_proj" else ("down",)
            result += [(f"blk.{layer}.ffn_{kind}_exps.weight", part) for kind, part in zip(kinds, parts, strict=True)]
            continue
        short = names[".".join(rest[:-1])]
        if short in ("attn_q", "attn_k"):
            values = _permute(values, HEADS if short == "attn_q" else KV_HEADS)
        result.append((f"blk.{layer}.{short}.weight", values))
    return result


def _write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    _write(_writer(tmp_path / "Small.gguf"))
    return tmp_path / "Small.gguf"


def _resolve(source: Path) -> Path:
    return resolve(str(source), cache_dir=source.parent / "cache")


def test_the_embedded_model_answers_through_transformers() -> None:
    directory = resolve("smollm2-135m-instruct")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output, skip_special_tokens=True) == "The capital of France is Paris."
    assert model.generation_config.eos_token_id in (2, [2])


@pytest.mark.parametrize("kind", ["llama", "llama tied", "mixtral"])
def test_a_model_survives_the_way_through_gguf(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if kind == "mixtral":
        original = MixtralForCausalLM(
            MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e4)
        )
    else:
        original = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=kind == "llama tied"))
    original = original.bfloat16().float()  # so that bf16 weights hold it exactly
    writer = _writer(tmp_path / "model.gguf", original)
    if kind == "mixtral":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
    _write(writer)
    copy = AutoModelForCausalLM.from_pretrained(_resolve(tmp_path / "model.gguf"), dtype=torch.float32)
    tokens = torch.arange(VOCAB)[None]
    with torch.no_grad():
        torch.testing.assert_close(copy(tokens).logits, original(tokens).logits, rtol=1e-5, atol=1e-5)


def test_quantized_tensors_are_dequantized(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((VOCAB, DIM)).astype(np.float32)
    writer = _writer(tmp_path / "q.gguf")
    packed = quantize(values, GGMLQuantizationType.Q8_0)
    writer.add_tensor("output.weight", packed, raw_dtype=GGMLQuantizationType.Q8_0)
    _write(writer)
    model = AutoModelForCausalLM.from_pretrained(_resolve(tmp_path / "q.gguf"), dtype=torch.float32)
    scale = np.abs(values).max() / 127
    np.testing.assert_allclose(model.lm_head.weight.detach().numpy(), values, atol=scale / 2 + 2**-7)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(width=32), min_size=1))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    numbers = np.array(values, dtype=np.float32)
    mine = torch.from_numpy(to_bfloat16(numbers).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(mine.nan_to_num(7.0), torch.from_numpy(numbers).bfloat16().nan_to_num(7.0))
    assert mine.isnan().tolist() == np.isnan(numbers).tolist()


def test_metadata_becomes_the_config(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "m.gguf")
    writer.add_sliding_window(48)
    writer.add_key_length(24)
    writer.add_string("llama.rope.scaling.type", "yarn")
    writer.add_float32("llama.rope.scaling.factor", 4.0)
    writer.add_uint32("llama.rope.scaling.original_context_length", 32)
    _write(writer)
    config = read_config(_resolve(tmp_path / "m.gguf"))
    assert (config.family, config.windows, config.head_dim, config.norm_eps) == ("mistral", (48, 48), 24, 1e-5)
    assert (config.max_position, config.rope_theta, config.tied_head) == (128, 10_000.0, True)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("yarn", 4.0)
    assert config.rope_scaling.original_max_position == 32


def _stamps(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def test_a_warm_start_reads_no_gguf(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = _resolve(small)
    before = _stamps(directory)
    monkeypatch.setitem(sys.modules, "gguf", None)  # an import of it would raise
    assert _resolve(small) == directory
    assert _stamps(directory) == before


def test_the_cache_follows_the_content_not_the_path(small: Path) -> None:
    directory = _resolve(small)
    assert directory.name.startswith("small-")
    elsewhere = small.parent / "deeper"
    elsewhere.mkdir()
    (elsewhere / "Small.gguf").write_bytes(small.read_bytes())
    assert resolve(str(elsewhere / "Small.gguf"), cache_dir=small.parent / "cache") == directory
    data = bytearray(small.read_bytes())
    data[-1] ^= 1
    small.write_bytes(data)
    assert _resolve(small) != directory


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json", "noria.json"])
@pytest.mark.parametrize("damage", ["one bit", "truncated", "removed"])
def test_a_damaged_entry_is_rebuilt(small: Path, file: str, damage: str) -> None:
    directory = _resolve(small)
    target = directory / file
    good = target.read_bytes()
    if damage == "removed":
        target.unlink()
    else:
        flipped = good[:-2] + bytes([good[-2] ^ 1]) + good[-1:]
        target.write_bytes(flipped if damage == "one bit" else good[: len(good) // 2])
    assert _resolve(small) == directory
    assert target.read_bytes() == good


def test_the_leavings_of_a_killed_build_are_no_obstacle(small: Path) -> None:
    directory = _resolve(small)
    partial = directory.rename(directory.with_name(f".{directory.name}.partial"))
    (partial / "config.json").unlink()
    assert _resolve(small) == directory
    assert (directory / "config.json").exists()
    assert not partial.exists()


def test_processes_that_start_together_share_one_conversion(small: Path) -> None:
    code = f"""
from pathlib import Path
from model.checkpoint.resolve import resolve
stages = set()
print(resolve({str(small)!r}, cache_dir=Path({str(small.parent)!r}) / "cache", progress=lambda s, f: stages.add(s)))
print(len(stages))
"""
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [child.communicate(timeout=60)[0].split() for child in children]
    assert len({directory for directory, _ in answers}) == 1
    assert sorted(stages for _, stages in answers) == ["0", "0", "0", "2"]


def test_a_cache_dir_that_is_a_file_is_one_line(small: Path) -> None:
    (small.parent / "cache").touch()
    with pytest.raises(ModelError, match=r"cannot write the model cache: .* --cache-dir"):
        _resolve(small)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_tokenizer_pre("qwen2"), "pre-tokenizer 'qwen2', supported are smollm, llama-bpe, gpt-2"),
        (lambda w: w.add_tokenizer_model("bert"), "a 'bert' tokenizer, supported are gpt2, llama"),
        (lambda w: w.add_string("llama.rope.scaling.type", "longrope"), "RoPE scaling 'longrope'"),
        (lambda w: w.add_tensor("blk.0.ssm_a.weight", np.ones(4, np.float32)), "tensor 'blk.0.ssm_a.weight'"),
        (lambda w: w.add_tensor("blk.0.attn_q.bias", np.ones(DIM, np.float32)), "tensor 'blk.0.attn_q.bias'"),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.full(4, 8, np.float32)),
            r"rope_freqs\.weight \(RoPE factors of kind llama3\), which is not supported yet in GGUF",
        ),
    ],
)
def test_what_is_not_supported_is_named(change: object, message: str, tmp_path: Path) -> None:
    writer = _writer(tmp_path / "m.gguf")
    writer.kv_data[0].pop(
        "tokenizer.ggml.pre" if "pre-" in message else "tokenizer.ggml.model" if "bert" in message else "", None
    )
    change(writer)  # type: ignore[operator]
    _write(writer)
    with pytest.raises(ModelError, match=message):
        _resolve(tmp_path / "m.gguf")
    assert not list((tmp_path / "cache").glob("[!.]*"))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    _write(_writer(tmp_path / "m.gguf", architecture="qwen2"))
    with pytest.raises(ModelError, match="architecture 'qwen2', supported is llama"):
        _resolve(tmp_path / "m.gguf")


@pytest.mark.parametrize("size", [0, 3, 100, 1000, -1000])
def test_a_truncated_file_is_one_line(small: Path, size: int) -> None:
    small.write_bytes(small.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"Small\.gguf is no readable GGUF file") as caught:
        _resolve(small)
    assert "\n" not in str(caught.value)


def test_the_manifest_names_every_file(small: Path) -> None:
    directory = _resolve(small)
    names = {path.name for path in directory.iterdir()}
    assert set(json.loads((directory / "noria.json").read_text())) == names - {"noria.json"}
