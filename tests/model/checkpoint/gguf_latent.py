"""GGUF files of models with latent attention, as llama.cpp's converters write them."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import quantize

from tests.model.checkpoint.gguf_files import write
from tests.model.network.latent_models import native_tensors

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


def tensors(model: Any, joined: bool) -> dict[str, np.ndarray]:
    """The weights under GGUF's names; gate and up of experts are `joined` or apart."""
    config, found = model.config, dict[str, np.ndarray]()
    for name, tensor in native_tensors(model).items():
        stem, values = name.removesuffix(".weight"), tensor.float().numpy()
        if stem in GLOBAL:
            found[f"{GLOBAL[stem]}.weight"] = values
            continue
        _, number, part = stem.split(".", 2)
        own = f"blk.{number}."
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
    for key, number in (numbers | changes.get("numbers", {})).items():
        writer.add_uint32(f"{architecture}.{key}", number)
    for key, value in (floats | changes.get("floats", {})).items():
        writer.add_float32(f"{architecture}.{key}", value)
    writer.add_rope_scaling_type(changes.get("scaling", RopeScalingType.YARN))
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
