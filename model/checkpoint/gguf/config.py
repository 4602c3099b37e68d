"""`config.json` and `generation_config.json` from the metadata of a GGUF file. No torch.

The metadata's keys are those of llama.cpp. A key that Noria does not know is an error, because it may change the
computation.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from model.checkpoint.gguf.rope import read_latent_rope, read_rope
from model.errors import ModelError, short

EMBEDDINGS = "tok_embeddings.weight"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""Types of tokens."""
_LATENT = (
    *("attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla"),
    *("leading_dense_block_count", "expert_shared_count", "expert_weights_scale"),
)
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {"llama": (), "mistral3": (), "mistral4": _LATENT, "deepseek2": _LATENT}
"""Architectures, and the keys that only they have. llama.cpp writes Mistral Small 4 as mistral4 (from Hugging Face's
files) or as deepseek2 (from native ones, as it writes Mistral Large 3)."""
_OTHERS = {
    "mamba2": "a state space model, as Codestral Mamba",
    "clip": "the vision or audio part of a model; name the file of its language model",
}
"""Architectures of models that belong to the family, or to its files, and why they are refused."""
_MEANINGLESS = ("vocab_size", "tensor_data_layout", "attention.layer_norm_epsilon", "rope.scaling.finetuned")
"""Keys of an architecture that change nothing here. Noria counts the rows of the embeddings."""
_READ = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "expert_feed_forward_length"),
    *("expert_count", "expert_used_count", "attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.layer_norm_rms_epsilon", "attention.scale", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "attention.temperature_scale", "attention.temperature_length"),
    *("rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.attn_factor", "rope.scaling.original_context_length", "rope.scaling.yarn_log_multiplier"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
)
_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (1,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "use_parallel_residual": (0,),
    "pooling_type": (0,),
    "nextn_predict_layers": (0,),
    "leading_dense_block_count": (0,),
    "expert_shared_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_gating_func": (1,),
    "expert_weights_norm": (1,),
    "expert_weights_scale": (0, 1),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_attn_factor": (1,),
}
"""Keys that would change the computation, and the values with which they do not."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys after `general.sampling.`, and the names of the same parameters in `generation_config.json`."""

_ENDS = (
    *("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
    *("<end_of_turn>", "<EOT>", "<|EOT|>"),
)
"""Texts of tokens that end an answer, whatever the keys say: the texts of llama.cpp's list that models with Llama's
layout use."""

Shapes = Mapping[str, tuple[int, ...]]


def hf_config(
    metadata: Mapping[str, Any], shapes: Shapes, divisors: Sequence[float] = (), dtype: str = "bfloat16"
) -> dict[str, Any]:
    """Make a `config.json` of GGUF metadata, the weights' shapes by native name, and the values of `rope_freqs.weight`.

    Raises ModelError for an architecture, a RoPE scaling or a key that is not supported, KeyError for a missing field.
    """
    values = _values(metadata)
    dim, n_layers, n_heads = (_whole(values, name) for name in ("embedding_length", "block_count", _HEADS))
    latent = _latent(values) if "attention.kv_lora_rank" in values else None
    head_dim = _head_dim(values, dim // n_heads) if latent is None else None
    config = {
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": _hidden_dim(values) if latent is None else _whole(values, "feed_forward_length"),
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": _whole(values, _KV_HEADS) if _KV_HEADS in values else n_heads,
        "head_dim": head_dim,
        "vocab_size": shapes[EMBEDDINGS][0],
        "max_position_embeddings": _whole(values, "context_length"),
        "rms_norm_eps": float(f"{values['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_parameters": read_latent_rope(values, divisors)
        if head_dim is None
        else read_rope(values, head_dim, divisors),
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": values.get("tokenizer.ggml.eos_token_id"),
        "dtype": dtype,
    }
    config |= _windows(values, n_layers)
    if latent is not None:
        return config | latent
    if experts := values.get("expert_count"):
        config |= {"num_local_experts": experts, "num_experts_per_tok": values["expert_used_count"]}
    return config | _family(config)


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the end tokens, and the sampling that the file recommends."""
    return {"eos_token_id": end_tokens(metadata)} | _sampling(metadata)


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Return the end tokens: `eos` (sequence), `eot` (turn, GGUF's word), `eom` (message), and those of known texts.

    A text that could be an HTML tag counts if the file does not call it an ordinary token.
    """
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}", ()) for name in ("tokens", "token_type"))
    places = ((text, token) for token, text in enumerate(tokens) if text in _ENDS)
    known = (token for text, token in places if "|" in text or (len(types) and types[token] != NORMAL))
    named = (metadata.get(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot", "eom"))
    ends = map(int, (*named, *np.ravel(metadata.get("tokenizer.ggml.eos_token_ids", ())), *known))
    return [end for end in dict.fromkeys(ends) if 0 <= end < len(tokens)]


def _sampling(metadata: Mapping[str, Any]) -> dict[str, float | int]:
    """Return the sampling parameters that the model's authors recommend, without the noise of 32-bit numbers."""
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in found.items()
        if value is not None
    }


_HEADS, _KV_HEADS = "attention.head_count", "attention.head_count_kv"


def _values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata without the architecture's prefix. Raises ModelError for an unsupported value."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"the GGUF file is of type {short(kind)}; Noria serves type model, name that file")
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        why = f" ({_OTHERS[architecture]})" if architecture in _OTHERS else ""
        raise ModelError(
            f"the GGUF file has architecture {short(architecture)}{why}; Noria supports {', '.join(ARCHITECTURES)}"
        )
    own = {key for key in metadata if key.startswith(f"{architecture}.")}
    values = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    for key in sorted(own):
        _check_key(key.removeprefix(f"{architecture}."), metadata[key], ARCHITECTURES[architecture])
    return values


def _check_key(key: str, value: Any, own: Collection[str]) -> None:
    """Raise ModelError for a key that is not known, or neutral with another value. `own` are the architecture's."""
    if key in own:
        return
    if key in _NEUTRAL:
        if value not in _NEUTRAL[key]:
            supported = " or ".join(map(str, _NEUTRAL[key]))
            raise ModelError(f"the GGUF file has {short(value)} in {key}; Noria supports {supported}")
    elif key not in _READ and key not in _MEANINGLESS:
        raise ModelError(
            f"the GGUF file has the key {short(key)}, which Noria does not know; use the model's safetensors"
        )


def _whole(values: Mapping[str, Any], name: str) -> int:
    """Return a number of at least 1. A list with a number for each layer counts if all are the same."""
    value = values[name]
    if isinstance(value, np.ndarray | list) and len(value) and all(item == value[0] for item in value):
        value = int(value[0])
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"the GGUF file has {short(value)} in {name}, expected a number of at least 1")
    return value


def _hidden_dim(values: Mapping[str, Any]) -> int:
    experts = "expert_feed_forward_length"
    return _whole(values, experts if values.get("expert_count") and values.get(experts) else "feed_forward_length")


def _head_dim(values: Mapping[str, Any], default: int) -> int:
    head_dim = _whole(values, "attention.key_length") if "attention.key_length" in values else default
    if (length := values.get("attention.value_length", head_dim)) != head_dim:
        raise ModelError(
            f"the GGUF file has {short(length)} in attention.value_length, but {head_dim} in key_length; "
            "Noria supports equal lengths"
        )
    scale = values.get("attention.scale") or head_dim**-0.5
    if abs(scale * head_dim**0.5 - 1) > 1e-5:
        raise ModelError(f"the GGUF file has {scale:.6g} in attention.scale; Noria supports {head_dim**-0.5:.6g}")
    return head_dim


def _latent(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of latent attention and of its experts, as a mistral4 model has them.

    The cache has one key of `key_length` and in it the latent; the lengths of the heads end with "_mla".
    """
    rank, rope_dim, head_dim = (
        _whole(values, name) for name in ("attention.kv_lora_rank", "rope.dimension_count", "attention.key_length_mla")
    )
    if head_dim <= rope_dim:
        raise ModelError(
            f"the GGUF file has {head_dim} in attention.key_length_mla, expected more than the {rope_dim} in "
            "rope.dimension_count"
        )
    if (length := values.get("attention.key_length")) != rank + rope_dim:
        raise ModelError(f"the GGUF file has {short(length)} in attention.key_length, expected {rank + rope_dim}")
    for name, expected in {
        "attention.value_length": rank,
        "attention.sliding_window": 0,
        "attention.scale": 0.0,
    }.items():
        if (found := values.get(name) or expected) != expected:
            raise ModelError(f"the GGUF file has {short(found)} in {name}, expected {expected} with latent attention")
    if not values.get("expert_weights_norm"):
        raise ModelError("the GGUF file has no expert_weights_norm; Noria supports weights of experts that add up to 1")
    return {
        "model_type": "mistral4",
        "architectures": ["Mistral4ForCausalLM"],
        "head_dim": head_dim,
        "num_key_value_heads": _whole(values, _HEADS),
        "q_lora_rank": values.get("attention.q_lora_rank"),
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": head_dim - rope_dim,
        "v_head_dim": _whole(values, "attention.value_length_mla"),
        "n_routed_experts": _whole(values, "expert_count"),
        "num_experts_per_tok": _whole(values, "expert_used_count"),
        "moe_intermediate_size": _whole(values, "expert_feed_forward_length"),
        "n_shared_experts": values.get("expert_shared_count", 0),
        "first_k_dense_replace": values.get("leading_dense_block_count", 0),
        "routed_scaling_factor": values.get("expert_weights_scale") or 1.0,
    }


def _windows(values: Mapping[str, Any], n_layers: int) -> dict[str, Any]:
    """Return the window, and which layers have it: every layer but each n-th by a pattern n, or as a list says."""
    window = values.get("attention.sliding_window") or None
    pattern = values.get("attention.sliding_window_pattern")
    if window is None or pattern is None:
        return {"sliding_window": window}
    if isinstance(pattern, int):
        slides = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(n_layers)]
    else:
        slides = [bool(item) for item in pattern]
    kinds = ["sliding_attention" if sliding else "full_attention" for sliding in slides]
    return {"sliding_window": window, "layer_types": kinds}


def _family(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by which Hugging Face names a model with these fields."""
    if "num_local_experts" in config:
        name = "Mixtral"
    elif "llama_4_scaling_beta" in config["rope_parameters"]:
        name = "Ministral3"
    elif "layer_types" in config:
        name = "Ministral"
    else:
        name = "Mistral" if config["sliding_window"] else "Llama"
    return {"model_type": name.lower(), "architectures": [f"{name}ForCausalLM"]}
