"""`config.json` and `generation_config.json` from the metadata of a GGUF file. No torch.

The metadata's keys are those of llama.cpp. A key that Noria does not know is an error if its name says that it may
change the computation, else a line for the log.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from model.checkpoint.configs.fields import Fields, unknown_keys
from model.checkpoint.gguf.rope import read_latent_rope, read_rope
from model.errors import ModelError, short

FILE = "the GGUF file"
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
OWN: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "v_head_dim": "attention.value_length_mla",
}
"""Hugging Face's keys, and those of the metadata with the same values."""
EXPERTS: Mapping[str, str] = {
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
}
"""The same of experts, for errors."""
_READ = (
    *(name for name in OWN.values() if name not in _LATENT),
    *("expert_feed_forward_length", "expert_count", "expert_used_count", "attention.key_length"),
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
    own = {key: _one(values[name]) for key, name in OWN.items() if name in values}
    raw = Fields(own, FILE, OWN)
    dim, n_heads, n_layers = raw.size("hidden_size"), raw.size("num_attention_heads"), raw.n_layers("num_hidden_layers")
    head_dim = None if "kv_lora_rank" in own else _head_dim(values, dim // n_heads)
    config = {
        "num_key_value_heads": n_heads,
        **own,
        "hidden_act": "silu",
        "vocab_size": shapes[EMBEDDINGS][0],
        "rms_norm_eps": float(f"{values['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_parameters": read_latent_rope(values, divisors)
        if head_dim is None
        else read_rope(values, head_dim, divisors),
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": values.get("tokenizer.ggml.eos_token_id"),
        "dtype": dtype,
        **_windows(values, n_layers),
    }
    if head_dim is None:
        return config | _latent(values, own)
    config |= {"head_dim": head_dim} | _experts(values)
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
    several = metadata.get("tokenizer.ggml.eos_token_ids", ())
    ends = map(int, (*named, *((several,) if isinstance(several, int) else several), *known))
    return [end for end in dict.fromkeys(ends) if 0 <= end < len(tokens)]


def _sampling(metadata: Mapping[str, Any]) -> dict[str, float | int]:
    """Return the sampling parameters that the model's authors recommend, without the noise of 32-bit numbers."""
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in found.items()
        if value is not None
    }


def _values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata, the architecture's without its prefix. Raises ModelError for what is not supported."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"the GGUF file is of type {short(kind)}; Noria serves type model, name that file")
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        why = f" ({_OTHERS[architecture]})" if architecture in _OTHERS else ""
        raise ModelError(
            f"the GGUF file has architecture {short(architecture)}{why}; Noria supports {', '.join(ARCHITECTURES)}"
        )
    own = _own(metadata)
    if unknown := unknown_keys(own, _known(metadata))[0]:
        raise ModelError(
            f"the GGUF file has the key {short(unknown[0])}, which Noria does not know; use the model's safetensors"
        )
    for key in sorted(own.keys() & _NEUTRAL.keys() - set(ARCHITECTURES[architecture])):
        if own[key] not in _NEUTRAL[key]:
            supported = " or ".join(map(str, _NEUTRAL[key]))
            raise ModelError(f"the GGUF file has {short(own[key])} in {key}; Noria supports {supported}")
    return {**metadata, **own}


def _own(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the architecture, without its prefix."""
    prefix = f"{metadata['general.architecture']}."
    return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _known(metadata: Mapping[str, Any]) -> Collection[str]:
    return {*_READ, *_NEUTRAL, *_MEANINGLESS, *ARCHITECTURES[metadata["general.architecture"]]}


def unused_keys(name: str, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key of the architecture in the file `name` that Noria does not know.

    The keys do not look as if they changed the computation: other unknown ones are refused.
    """
    for key in unknown_keys(_own(metadata), _known(metadata))[1]:
        yield f"{name} has the key {short(key)}, which Noria does not use"


def _size(values: Mapping[str, Any], name: str) -> int:
    """Return a number of at least 1, or that of all layers. Raises KeyError for a missing field."""
    return Fields({name: _one(values[name])}, FILE).size(name)


def _one(value: Any) -> Any:
    """Return the number of a list with a number for each layer that are all the same, else the value itself."""
    return value[0] if isinstance(value, list) and value and value == value[:1] * len(value) else value


def _experts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of experts with attention that is not latent; none for a dense model."""
    if not values.get("expert_count"):
        return {}
    hidden_dim = values.get("expert_feed_forward_length")
    found = {
        "num_local_experts": _size(values, "expert_count"),
        "num_experts_per_tok": _size(values, "expert_used_count"),
    }
    return found | ({"intermediate_size": _size(values, "expert_feed_forward_length")} if hidden_dim else {})


def _head_dim(values: Mapping[str, Any], default: int) -> int:
    head_dim = _size(values, "attention.key_length") if "attention.key_length" in values else default
    if (length := values.get("attention.value_length", head_dim)) != head_dim:
        raise ModelError(
            f"the GGUF file has {short(length)} in attention.value_length, but {head_dim} in key_length; "
            "Noria supports equal lengths"
        )
    scale = values.get("attention.scale") or head_dim**-0.5
    if abs(scale * head_dim**0.5 - 1) > 1e-5:
        raise ModelError(f"the GGUF file has {scale:.6g} in attention.scale; Noria supports {head_dim**-0.5:.6g}")
    return head_dim


def _latent(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of latent attention and of its experts, as a mistral4 model has them.

    The cache has one key of `key_length` and in it the latent; the lengths of the heads end with "_mla".
    """
    names = "attention.kv_lora_rank", "rope.dimension_count", "attention.key_length_mla"
    rank, rope_dim, head_dim = (_size(values, name) for name in names)
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
        "num_key_value_heads": own["num_attention_heads"],
        "q_lora_rank": own.get("q_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": head_dim - rope_dim,
        "n_routed_experts": _size(values, "expert_count"),
        "num_experts_per_tok": _size(values, "expert_used_count"),
        "moe_intermediate_size": _size(values, "expert_feed_forward_length"),
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
