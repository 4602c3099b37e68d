"""GGUF files of Mistral Small 4, as llama.cpp's converters write them: from native files, and from Hugging Face's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import dequantize, quantize

from model.checkpoint.families import read_config
from model.errors import ModelError
from tests.model.checkpoint.gguf_files import write
from tests.model.driving import network
from tests.model.network.latent_models import logprobs, mistral4, native_tensors
from tests.model.network.oracles import TOKENS

NAMES = {
    "attention.wq_a": "attn_q_a",
    "attention.q_a_norm": "attn_q_a_norm",
    "attention.wq_b": "attn_q_b",
    "attention.wkv_a_with_mqa": "attn_kv_a_mqa",
    "attention.kv_a_norm": "attn_kv_a_norm",
    "attention.wo": "attn_output",
    "attention_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate_inp",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "shared_experts.w1": "ffn_gate_shexp",
    "shared_experts.w2": "ffn_down_shexp",
    "shared_experts.w3": "ffn_up_shexp",
}
GLOBAL = {"tok_embeddings": "token_embd", "norm": "output_norm", "output": "output"}
FACTORS = {"Q4_K": ((0, 2e-4), (2, 1.5e-3)), "Q6_K": ((208, 7e-5),)}
"""Bytes of the float16 factors in a block, and their sizes."""
WIDE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "q_lora_rank": 256}
WIDE |= {"kv_lora_rank": 256, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
WIDTHS = {"hidden_size": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
KINDS = [("Q8_0", WIDTHS), ("Q4_0", WIDTHS), ("Q4_K_M", WIDE)]


def tensors(model: Any, joined: bool) -> dict[str, np.ndarray]:
    """The weights under GGUF's names; gate and up of experts are `joined` or apart."""
    config, found = model.config, dict[str, np.ndarray]()
    for name, tensor in native_tensors(model).items():
        stem, values = name.removesuffix(".weight"), tensor.float().numpy()
        if stem in GLOBAL:
            found[f"{GLOBAL[stem]}.weight"] = values
            continue
        _, layer, part = stem.split(".", 2)
        own = f"blk.{layer}."
        if part in NAMES:
            found[f"{own}{NAMES[part]}.weight"] = values
        elif part == "attention.wkv_b":
            heads = values.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            keys, rest = np.split(heads, [config.qk_nope_head_dim], axis=1)
            found[f"{own}attn_k_b.weight"] = np.ascontiguousarray(keys.swapaxes(1, 2))
            found[f"{own}attn_v_b.weight"] = np.ascontiguousarray(rest)
    for layer, block in enumerate(model.model.layers):
        if hasattr(block.mlp, "experts"):
            both, down = (
                part.detach().numpy() for part in (block.mlp.experts.gate_up_proj, block.mlp.experts.down_proj)
            )
            own = f"blk.{layer}.ffn"
            gate, up = np.split(both, 2, axis=1)
            found |= {f"{own}_gate_up_exps.weight": both} if joined else {f"{own}_gate_exps.weight": gate}
            found |= {f"{own}_down_exps.weight": down} | ({} if joined else {f"{own}_up_exps.weight": up})
    return found


def save(model: Any, path: Path, architecture: str, kind: str = "F32", **changes: Any) -> Path:
    """Write the model. Matrices are of this kind; the gate stays as it is."""
    config, writer = model.config, GGUFWriter(path, architecture)
    rope = config.rope_parameters
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_gating_func": 1,
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "attention.temperature_length": rope["original_max_position_embeddings"],
        "vocab_size": config.vocab_size,
    }
    floats = {
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "expert_weights_scale": config.routed_scaling_factor,
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "rope.scaling.yarn_log_multiplier": 0.1,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"{architecture}.{key}", number)
    for key, value in (floats | changes.get("floats", {})).items():
        writer.add_float32(f"{architecture}.{key}", value)
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    if changes.get("norm", True):
        writer.add_expert_weights_norm(True)
    stored = tensors(model, joined=architecture == "mistral4") | changes.get("tensors", {})
    random = np.random.default_rng(0)
    for name, values in stored.items():
        own = kind_of(kind, name, values)
        if own == "F32":
            writer.add_tensor(name, values)
            continue
        rows = superblocks(own, values.shape, random) if own in FACTORS else quantize(values, GGMLQuantizationType[own])
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType[own])
    write(writer)
    return path


def kind_of(kind: str, name: str, values: np.ndarray) -> str:
    """What llama-quantize writes: Q4_K_M mixes kinds, and has none of blocks of 256 where rows have other lengths."""
    if values.ndim == 1 or "ffn_gate_inp" in name:
        return "F32"
    if kind != "Q4_K_M":
        return kind
    if values.shape[-1] % 256:
        return "Q5_0"
    return "Q6_K" if "ffn_down" in name or name == "output.weight" else "Q4_K"


def superblocks(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Random rows of a kind for which the package has no encoder: any bytes, and factors that suit a network."""
    block, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = random.integers(0, 256, (*shape[:-1], shape[-1] // block, n_bytes), dtype=np.uint8)
    for at, size in FACTORS[kind]:
        factors = random.uniform(0.5 * size, 1.5 * size, data.shape[:-1]).astype(np.float16)
        data[..., at : at + 2] = factors.view(np.uint8).reshape(*data.shape[:-1], 2)
    return data.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("architecture", ["deepseek2", "mistral4"])
def test_log_probabilities_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = mistral4()
    expected = logprobs(model)
    path = save(model, tmp_path / "m.gguf", architecture)
    found = network(path).whole(TOKENS).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("kind", "sizes"), KINDS, ids=[kind for kind, _ in KINDS])
@pytest.mark.parametrize("scheme", ["none", "int4"])
def test_quantized_files_mean_what_the_package_says(
    kind: str, sizes: dict[str, int], scheme: str, tmp_path: Path
) -> None:
    """int4 keeps the blocks; activations of 8 bits are its error."""
    model = mistral4(**sizes)
    path = save(model, tmp_path / "m.gguf", "deepseek2", kind)
    with torch.no_grad():
        meant = reread(path, model)
    found = network(path, scheme).whole(TOKENS).log_softmax(-1)
    difference = (found - logprobs(meant)).abs()
    assert difference.max() < 1e-4 if scheme == "none" else difference.mean() < 0.15


def reread(path: Path, model: Any) -> Any:
    """The model with the weights of the file, decoded by the gguf package."""
    from gguf import GGUFReader

    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    def weights(name: str) -> torch.Tensor:
        tensor = found[name]
        shape = [int(size) for size in tensor.shape[::-1]]
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).reshape(shape).copy())

    state = model.state_dict()
    state["model.embed_tokens.weight"], state["lm_head.weight"] = weights("token_embd.weight"), weights("output.weight")
    theirs = {
        "q_a_proj": "attn_q_a",
        "q_b_proj": "attn_q_b",
        "kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "o_proj": "attn_output",
    }
    for layer, block in enumerate(model.model.layers):
        own, prefix = f"blk.{layer}.", f"model.layers.{layer}."
        for name, gguf in theirs.items():
            state[f"{prefix}self_attn.{name}.weight"] = weights(f"{own}{gguf}.weight")
        heads = torch.cat((weights(f"{own}attn_k_b.weight").transpose(1, 2), weights(f"{own}attn_v_b.weight")), dim=1)
        state[f"{prefix}self_attn.kv_b_proj.weight"] = heads.flatten(0, 1)
        sparse = hasattr(block.mlp, "experts")
        feed_forward, suffix = ("mlp.shared_experts", "_shexp") if sparse else ("mlp", "")
        for name, gguf in (("gate_proj", "ffn_gate"), ("down_proj", "ffn_down"), ("up_proj", "ffn_up")):
            state[f"{prefix}{feed_forward}.{name}.weight"] = weights(f"{own}{gguf}{suffix}.weight")
        if sparse:
            both = torch.cat([weights(f"{own}ffn_{part}_exps.weight") for part in ("gate", "up")], dim=1)
            state[f"{prefix}mlp.experts.gate_up_proj"] = both
            state[f"{prefix}mlp.experts.down_proj"] = weights(f"{own}ffn_down_exps.weight")
    model.load_state_dict(state)
    return model


def test_the_multiplier_of_yarn_does_not_scale_scores(tmp_path: Path) -> None:
    """llama.cpp multiplies by m squared for a multiplier of 0.1; the model was trained without it."""
    latent = read_config(save(mistral4(), tmp_path / "m.gguf", "deepseek2")).latent
    assert latent is not None
    assert latent.softmax_scale == 20**-0.5
    assert latent.mscale == pytest.approx((1 + 0.1 * np.log(8)) ** 2)


def test_experts_whose_weights_are_not_normed_are_refused(tmp_path: Path) -> None:
    """As in DeepSeek V2."""
    path = save(mistral4(), tmp_path / "m.gguf", "deepseek2", norm=False)
    with pytest.raises(ModelError, match="no expert_weights_norm"):
        read_config(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"floats": {"rope.scaling.attn_factor": 2.0}}, "has 2.0 in rope.scaling.attn_factor, expected 1.0"),
        ({"floats": {"attention.scale": 0.5}}, "has 0.5 in attention.scale"),
        ({"floats": {"attention.sliding_window": 8.0}}, "has 8.0 in attention.sliding_window, expected 0"),
        ({"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}}, "has rope_freqs.weight, which"),
    ],
)
def test_what_would_change_the_computation_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read_config(save(mistral4(), tmp_path / "m.gguf", "deepseek2", **changes))
