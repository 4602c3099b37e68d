"""GGUF files as cached directories and as weights. Oracles: transformers' models, the gguf package's decoders."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from model import weights
from model.attention import choose
from model.blocks import Blocks, Encoded, Matrix, join
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import resolve
from model.errors import ModelError
from model.families import read_config
from model.runner import create
from model.sampling_params import SamplingParams
from model.transformer import Transformer
from service.engine.messages import Submit
from service.engine.scheduler import Scheduler
from tests.model.driving import CPU, Driver

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


@pytest.mark.parametrize("scheme", ["none", "int4"])
def test_the_embedded_model_answers(scheme: str, embedded_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_model)
    messages = [{"role": "user", "content": "What is the chemical formula of water?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    options = {"quantize": scheme, "max_model_len": 128, "cache_memory": 2**25}
    runner = create(lambda stage, done: None, model=str(embedded_model), device="cpu", dtype="float32", **options)
    scheduler = Scheduler(runner.info, max_sequences=1, max_step_tokens=64)
    scheduler.submit(Submit(0, prompt, SamplingParams(temperature=0.0, max_tokens=10)))
    tokens: list[int] = []
    while scheduler.has_work:
        for update in scheduler.commit(runner.step(scheduler.plan())):
            tokens += update.tokens
    assert tokenizer.decode(tokens) == "The chemical formula of water is H2O."


def _network(directory: Path, scheme: str = "none") -> Driver:
    checkpoint = open_checkpoint(directory)
    with torch.device("meta"):
        model = Transformer(checkpoint.config, scheme)
    weights.load(
        model, checkpoint.config, checkpoint.rotation, checkpoint.tensors(), torch.float32, CPU, lambda _: None
    )
    return Driver(model.eval(), choose("auto", CPU)[1])


@pytest.mark.parametrize("kind", ["llama", "llama tied", "mixtral"])
def test_a_model_survives_the_way_through_gguf(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if kind == "mixtral":
        original = MixtralForCausalLM(
            MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e4)
        )
    else:
        original = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=kind == "llama tied"))
    writer = _writer(tmp_path / "model.gguf", original)
    if kind == "mixtral":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
    _write(writer)
    with torch.no_grad():
        expected = original(torch.arange(VOCAB)[None]).logits[0]
    found = _network(_resolve(tmp_path / "model.gguf")).whole(range(VOCAB))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def _stored(kinds: dict[str, str], path: Path, n_out: int = 300, n_in: int = 256) -> dict[str, tuple[Matrix, Tensor]]:
    """Random matrices of these kinds: as they come from the file, and what the gguf package makes of them."""
    writer = _writer(path)
    random = np.random.default_rng(0)
    expected = {}
    for name, kind in kinds.items():
        if kind == "Q6_K":  # for which the package has no encoder: low and high bits, scales, one float16
            data = random.integers(0, 256, (n_out, 210), dtype=np.uint8)
            data[:, 208:] = np.full(n_out, 0.01, np.float16).view(np.uint8).reshape(-1, 2)
        else:
            values = random.standard_normal((n_out, n_in)).astype(np.float32)
            data = quantize(values, GGMLQuantizationType[kind])
        floats = dequantize(data, GGMLQuantizationType[kind])
        expected[name] = torch.from_numpy(floats)
        writer.add_tensor(f"blk.0.attn_{name}.weight", data, raw_dtype=GGMLQuantizationType[kind])
    _write(writer)
    tensors = dict(open_checkpoint(_resolve(path)).tensors())
    return {name: (tensors[f"layers.0.attention.w{name}.weight"], expected[name]) for name in kinds}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "Q6_K", "F16", "BF16", "F32"])
def test_matrices_of_a_quantized_file_mean_what_the_package_says(kind: str, tmp_path: Path) -> None:
    stored = _stored({"q": kind, "k": "Q4_0"}, tmp_path / "m.gguf")
    matrix, expected = stored["q"]
    assert isinstance(matrix, Blocks if kind in ("Q4_0", "Q4_1", "Q8_0") else Encoded)
    assert tuple(matrix.shape) == (300, 256)
    assert torch.equal(matrix.dequantize(), expected)
    order = torch.randperm(300)
    assert torch.equal(matrix[order].dequantize(), expected[order])
    assert torch.equal(matrix[250:].dequantize(), expected[250:])


@pytest.mark.parametrize(
    ("kinds", "bits"),
    [
        (("Q4_0",), 4),
        (("Q4_0", "Q4_0"), 4),
        (("Q4_0", "Q4_1"), 4),
        (("Q4_1", "Q8_0"), 8),
        (("Q8_0", "Q4_0"), 8),
        (("Q4_1", "Q4_0", "Q8_0"), 8),
    ],
)
def test_joined_blocks_mean_the_same(kinds: tuple[str, ...], bits: int, tmp_path: Path) -> None:
    stored = _stored(dict(zip("qkv", kinds, strict=False)), tmp_path / "m.gguf")
    whole = join([blocks for blocks, _ in stored.values()])  # type: ignore[misc]
    assert whole.quants.shape[2] * 8 == 32 * bits
    assert (whole.mins is not None) == ("Q4_1" in kinds)
    assert torch.equal(whole.dequantize(), torch.cat([expected for _, expected in stored.values()]))


def test_a_file_of_floats_is_read_as_tensors(tmp_path: Path) -> None:
    stored = _stored({"q": "F16", "k": "BF16", "v": "F32"}, tmp_path / "m.gguf")
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for (tensor, expected), dtype in zip(stored.values(), dtypes, strict=True):
        assert isinstance(tensor, Tensor)
        assert tensor.dtype is dtype
        assert torch.equal(tensor.float(), expected)


@pytest.mark.parametrize("mixed", [False, True])
def test_int4_runs_a_file_near_its_dequantized_self(mixed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False, initializer_range=0.2))
    writer = _writer(tmp_path / "model.gguf")
    kinds = ("Q4_0", "Q8_0", "Q4_1", "F16", "Q5_0") if mixed else ("Q4_0",)  # so that wqkv and w13 get several
    writer.tensors[0].clear()
    for number, (name, values) in enumerate(_tensors(original)):
        kind = GGMLQuantizationType["F32" if values.ndim == 1 else kinds[number % len(kinds)]]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    _write(writer)
    directory = _resolve(tmp_path / "model.gguf")
    tokens = [*range(VOCAB)] * 3
    expected = _network(directory).whole(tokens)
    network = _network(directory, "int4")
    found = network.whole(tokens)
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.995
    assert not torch.equal(found, expected)
    assert torch.equal(network.whole(tokens, chunk=7), found)


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


def test_an_entry_is_of_one_content_at_one_place(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = _resolve(small)
    assert directory.name.startswith("small-")
    monkeypatch.chdir(small.parent)
    assert resolve("Small.gguf", cache_dir=small.parent / "cache") == directory
    (small.parent / "link.gguf").symlink_to(small)
    link = resolve("link.gguf", cache_dir=small.parent / "cache")
    small.rename(small.parent / "Moved.gguf")
    for stale in (directory, link):
        with pytest.raises(ModelError, match=r"cannot read Small\.gguf: No such file or directory; start again"):
            open_checkpoint(stale)
    moved = resolve("Moved.gguf", cache_dir=small.parent / "cache")
    assert [name for name, _ in open_checkpoint(moved).tensors()] == ["tok_embeddings.weight"]


def test_another_file_in_its_place_is_noticed(small: Path) -> None:
    directory = _resolve(small)
    data = bytearray(small.read_bytes())
    data[-1] ^= 1
    small.write_bytes(data)
    with pytest.raises(ModelError, match=r"Small\.gguf is not the file any more that it was at the start; start again"):
        open_checkpoint(directory)
    assert _resolve(small) != directory


@pytest.mark.parametrize("file", ["gguf.json", "tokenizer.json", "config.json", "noria.json"])
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
    assert sorted(stages for _, stages in answers) == ["0", "0", "0", "1"]


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
            lambda w: w.add_tensor("output.weight", np.ones((VOCAB, DIM), np.int8)),
            r"tensor 'output\.weight' in I8, which has no decoder",
        ),
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
