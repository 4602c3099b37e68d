"""ModelConfig from Mistral's params.json. Its keys are strict: one that is not known is an error, never ignored."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.checkpoint.configs.audio import REALTIME, read_native_audio
from model.checkpoint.configs.fields import (
    check_keys,
    dtype_of,
    number,
    number_of_layers,
    optional_size,
    positive,
    present_shards,
    repeated,
    size,
    tied_head,
)
from model.checkpoint.configs.latent import KEYS as LATENT
from model.checkpoint.configs.latent import check_head_dim, read_latent
from model.checkpoint.configs.vision import read_native_vision
from model.checkpoint.files import read_json
from model.config.latent import LatentConfig
from model.config.model import ModelConfig, QueryTemperature, RopeScaling
from model.errors import ModelError, short

FILE = "params.json"
AUDIO = "whisper_model_args"
"""The key of `multimodal` that describes an audio encoder."""
MAX_POSITION = 32_768
"""Context of a checkpoint whose params.json does not name it, as in the HF versions of those models."""

SERVED = frozenset(
    (
        *("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps", "dtype"),
        *("rope_theta", "rope_fraction", "max_seq_len", "max_position_embeddings", "tied_embeddings", "model_type"),
        *("sliding_window", "_sliding_window", "yarn", "llama_4_scaling", "moe", "quantization", "quantization_config"),
        *("vision_encoder", "multimodal", *LATENT),
    )
)
"""Keys that describe the network."""
MEANINGLESS = frozenset((*("max_batch_size", "model_parallel", "bos_token_id", "eos_token_id", "pad_token_id"),))
"""Keys that mean nothing for serving: sizes of another program, ids that the tokenizer knows."""
ONLY: Mapping[str, tuple[Any, ...]] = {
    "activation": ("silu", "swish"),
    "causal": (True,),
    "is_causal": (True,),
    "use_biases": (False,),
}
"""Keys that may only have the values which describe what Noria does."""
MISSING: Mapping[str, str] = {
    "lora": "LoRA adapters",
    "ada_rms_norm_t_cond": REALTIME,
}
"""Keys of what Noria does not have. They may be null, as in Ministral 3's files."""
EXPERTS: Mapping[str, str] = {
    "num_experts": "n_experts",
    "num_experts_per_tok": "n_experts_per_token",
    "expert_hidden_dim": "expert_hidden_dim",
    "num_shared_experts": "n_shared_experts",
    "routed_scale": "routed_scale",
    "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "route_every_n",
}
"""Keys of `moe`, each with its field of ModelConfig."""
EXPERT_GROUPS = ("num_expert_groups", "num_expert_groups_per_tok")
EXPERT_TRAINING = ("expert_parallel", "expert_model_parallel")
"""Keys of `moe` that say how the model was trained."""
KNOWN = SERVED | MEANINGLESS | ONLY.keys() | MISSING.keys()


def read_params(directory: Path) -> ModelConfig:
    """Read the ModelConfig of a directory with params.json. Raises ModelError, which names the key and its value."""
    raw = read_json(directory / FILE)
    _check(raw)
    experts = _experts(raw.get("moe"))
    dim, n_heads = (size(raw, key, FILE) for key in ("dim", "n_heads"))
    n_layers = number_of_layers(raw, "n_layers", FILE)
    windows = _windows(raw, n_layers)
    scaling = _yarn(raw)
    shards = present_shards(directory)
    latent, head_dim = read_latent(raw, FILE), optional_size(raw, "head_dim", FILE)
    if latent is not None:
        check_head_dim(latent, head_dim, FILE)
        head_dim = latent.head_dim
    if latent is not None and scaling is not None:
        latent, scaling = _of_scores(latent, scaling)
    return ModelConfig(
        family="mistral4" if latent else "mixtral" if experts else "mistral",
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=optional_size(raw, "n_kv_heads", FILE) or n_heads,
        head_dim=head_dim or dim // n_heads,
        hidden_dim=size(raw, "hidden_dim", FILE),
        vocab_size=size(raw, "vocab_size", FILE),
        norm_eps=number(raw, "norm_eps", FILE),
        rope_theta=positive(raw, "rope_theta", FILE, 10_000.0 if any(windows) else 1_000_000.0),
        rope_fraction=1.0 if raw.get("rope_fraction") is None else raw["rope_fraction"],
        rope_scaling=scaling,
        rope_dim=latent.qk_rope_head_dim if latent else None,
        latent=latent,
        query_temperature=_temperature(raw),
        max_position=_max_position(raw, scaling),
        windows=windows,
        tied_head=tied_head(shards, bool(raw.get("tied_embeddings", False))),
        dtype=dtype_of(raw.get("dtype"), shards),
        vision=read_native_vision(raw.get("vision_encoder"), shards),
        audio=read_native_audio((raw.get("multimodal") or {}).get(AUDIO), shards),
        **experts,
    )


def _check(raw: Mapping[str, Any]) -> None:
    """Raise ModelError for what Noria does not have, and for keys that it does not know."""
    kind = raw.get("model_type", "transformer")
    if kind == "mamba":
        raise ModelError(
            "params.json has model_type 'mamba', which needs a state space layer (Codestral Mamba): Noria has none; "
            "it supports transformer"
        )
    if kind != "transformer":
        raise ModelError(f"params.json has model_type {short(kind)}; Noria supports transformer")
    if raw.get("multimodal") is not None and not isinstance(raw["multimodal"], dict):
        raise ModelError(f"params.json must have an object or null in multimodal, it has {short(raw['multimodal'])}")
    for key, what in MISSING.items():
        if not _is_off(raw.get(key)):
            raise ModelError(
                f"params.json has {key} {short(raw[key])}, which needs {what}: Noria has none; choose another model"
            )
    check_keys(raw, KNOWN, FILE)
    check_keys(raw.get("multimodal") or {}, (AUDIO,), "multimodal in params.json")
    for key, values in ONLY.items():
        if raw.get(key) is not None and raw[key] not in values:
            raise ModelError(f"params.json has {key} {short(raw[key])}; Noria supports {values[0]!r}")


def _is_off(value: Any) -> bool:
    """Return whether an unsupported feature is unused: null, 0, or an object that is empty or says so."""
    if not isinstance(value, dict):
        return value is None or value == 0
    return not value or value.get("enable") is False or value.get("rank") == 0


def _windows(raw: Mapping[str, Any], n_layers: int) -> tuple[int | None, ...]:
    """Return the windows: one for all layers, or a list that repeats. `_sliding_window` is `sliding_window`, too."""
    names = [name for name in ("sliding_window", "_sliding_window") if raw.get(name) is not None]
    if len(names) == 2 and raw[names[0]] != raw[names[1]]:
        raise ModelError(
            f"params.json has sliding_window {short(raw[names[0]])} and _sliding_window {short(raw[names[1]])}; "
            "they mean the same, remove one"
        )
    value: Any = raw[names[0]] if names else None
    return repeated(value, n_layers, f"{names[0] if names else 'sliding_window'} in {FILE}")


def _experts(raw: Any) -> dict[str, Any]:
    """Return the fields of ModelConfig about experts; none for a dense model. A key that is null is not set."""
    known = check_keys({} if raw is None else raw, (*EXPERTS, *EXPERT_GROUPS, *EXPERT_TRAINING), "moe in params.json")
    moe = {key: value for key, value in known.items() if value is not None}
    for key in EXPERT_GROUPS:
        if moe.get(key, 1) != 1:
            raise ModelError(f"params.json has moe.{key} {short(moe[key])}; Noria supports 1 group of experts")
    if moe and not moe.get("num_experts"):
        raise ModelError("params.json has moe without num_experts; Noria needs a number of at least 1")
    return {field: moe[key] for key, field in EXPERTS.items() if key in moe}


def _yarn(raw: Mapping[str, Any]) -> RopeScaling | None:
    """Read YaRN: `beta` is the fast end of the ramp, `alpha` the slow one; `apply_scale` false leaves q and k alone."""
    if raw.get("yarn") is None:
        return None
    known = ("factor", "original_max_position_embeddings", "beta", "alpha", "apply_scale")
    yarn = check_keys(raw["yarn"], known, "yarn in params.json")
    apply = yarn.get("apply_scale", True)
    if not isinstance(apply, bool):
        raise ModelError(f"params.json has apply_scale {short(apply)} in yarn; it must be true or false")
    return RopeScaling(
        "yarn",
        number(yarn, "factor", "yarn in params.json"),
        number(yarn, "original_max_position_embeddings", "yarn in params.json"),
        beta_fast=positive(yarn, "beta", "yarn in params.json", 32.0),
        beta_slow=positive(yarn, "alpha", "yarn in params.json", 1.0),
        attention_factor=None if apply else 1.0,
    )


def _of_scores(latent: LatentConfig, scaling: RopeScaling) -> tuple[LatentConfig, RopeScaling]:
    """Apply `apply_scale` of latent attention to whole scores, as vLLM does, not to the rotating channels alone."""
    applied = scaling.attention_factor is None
    return replace(latent, mscale=scaling.stretched(1.0) ** 2, scaled=applied), replace(scaling, attention_factor=1.0)


def _temperature(raw: Mapping[str, Any]) -> QueryTemperature | None:
    if raw.get("llama_4_scaling") is None:
        return None
    known = ("original_max_position_embeddings", "beta")
    scaling = check_keys(raw["llama_4_scaling"], known, "llama_4_scaling in params.json")
    if (beta := scaling.get("beta")) == 0:
        return None
    return QueryTemperature(scaling.get("original_max_position_embeddings"), beta)  # type: ignore[arg-type]


def _max_position(raw: Mapping[str, Any], scaling: RopeScaling | None) -> Any:
    declared = optional_size(raw, "max_seq_len", FILE) or optional_size(raw, "max_position_embeddings", FILE)
    if declared or scaling is None:
        return declared or MAX_POSITION
    return int(scaling.factor * scaling.original_max_position)
