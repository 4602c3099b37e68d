"""Mistral's params.json in the form of Hugging Face's config.json. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from model.checkpoint.configs.audio import REALTIME, native_audio
from model.checkpoint.configs.fields import Fields, check_keys, has_encoder, unknown_keys
from model.checkpoint.configs.latent import KEYS as LATENT
from model.checkpoint.configs.vision import native_vision
from model.checkpoint.files import ShardFile
from model.errors import ModelError, short

FILE = "params.json"
AUDIO = "whisper_model_args"
"""The key of `multimodal` that describes an audio encoder."""
MAX_POSITION = 32_768
"""Context of a checkpoint whose params.json does not name it, as in the HF versions of those models."""
OWN: Mapping[str, str] = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "hidden_dim",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "norm_eps",
    "rope_theta": "rope_theta",
    "rope_fraction": "rope_fraction",
    "tie_word_embeddings": "tied_embeddings",
    "dtype": "dtype",
    **{key: key for key in LATENT},
}
"""Hugging Face's keys, and those of params.json with the same values."""
EXPERTS: Mapping[str, str] = {
    "num_experts": "n_experts",
    "num_experts_per_tok": "n_experts_per_token",
    "expert_hidden_dim": "expert_hidden_dim",
    "num_shared_experts": "n_shared_experts",
    "routed_scale": "routed_scale",
    "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "route_every_n",
}
"""Keys of `moe`, each with its field of ModelConfig. Hugging Face's form has no names for some."""
EXPERT_GROUPS = ("num_expert_groups", "num_expert_groups_per_tok")
EXPERT_TRAINING = ("expert_parallel", "expert_model_parallel")
"""Keys of `moe` that say how the model was trained."""
ORIGINAL = "original_max_position_embeddings"
ONLY: Mapping[str, tuple[Any, ...]] = {
    "activation": ("silu", "swish", None),
    "causal": (True, None),
    "is_causal": (True, None),
    "use_biases": (False, None),
}
"""Keys that may only have the values which describe what Noria does."""
MISSING: Mapping[str, str] = {"lora": "LoRA adapters", "ada_rms_norm_t_cond": REALTIME}
"""Keys of what Noria does not have. They may be null, as in Ministral 3's files."""
KNOWN = frozenset(
    (
        *(*OWN.values(), *ONLY, *MISSING, "max_seq_len", "max_position_embeddings", "model_type", "sliding_window"),
        *("_sliding_window", "yarn", "llama_4_scaling", "moe", "quantization", "quantization_config"),
        *("vision_encoder", "multimodal"),
        *("max_batch_size", "model_parallel", "bos_token_id", "eos_token_id", "pad_token_id"),
    )
)
"""Keys that Noria reads, and in the last row those that mean nothing for serving."""


def native_text(raw: Mapping[str, Any]) -> Fields:
    """Return the fields of the text model. Raises ModelError for what Noria does not have."""
    params = Fields(raw, FILE)
    _check(params)
    moe, latent = _experts(raw.get("moe")), any(raw.get(key) for key in LATENT)
    rope = _yarn(params, latent=latent)
    window, of_window = _window(params)
    windowed = any(window) if isinstance(window, list) else window
    values = {
        **{key: raw.get(name) for key, name in OWN.items()},
        **moe,
        "model_type": "mistral4" if latent else "mixtral" if moe else "mistral",
        "tie_word_embeddings": bool(raw.get("tied_embeddings")),
        "sliding_window": window,
        "rope_theta": params.positive("rope_theta", 10_000.0 if windowed else 1_000_000.0),
        "rope_parameters": rope,
        "llama_4_scaling": _temperature(params),
        "max_position_embeddings": _max_position(params, rope),
    }
    if latent and windowed:
        raise ModelError(f"{FILE} has {of_window} {short(window)}; Noria supports latent attention without a window")
    return Fields(values, FILE, {**OWN, "sliding_window": of_window, **{key: f"moe.{key}" for key in EXPERTS}})


def native_encoders(raw: Mapping[str, Any], shards: Sequence[ShardFile]) -> tuple[Fields | None, Fields | None]:
    """Return the fields of the encoders of images and of audio; None for those without weights in the files."""
    multimodal = check_keys(Fields(raw, FILE).object("multimodal"), (AUDIO,), f"multimodal in {FILE}")
    declared = raw.get("vision_encoder"), multimodal.get(AUDIO)
    vision, audio = (found is not None and has_encoder(shards, found) for found in declared)
    return native_vision(declared[0]) if vision else None, native_audio(declared[1]) if audio else None


def unknown_params(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line for each key that Noria does not know, and that does not look as if it changed the computation."""
    return tuple(f"{FILE} has the key {short(key)}, which Noria does not use" for key in unknown_keys(raw, KNOWN)[1])


def _check(raw: Fields) -> None:
    """Refuse what Noria does not have, and unknown keys that may change the computation."""
    if (kind := raw.get("model_type", "transformer")) == "mamba":
        raise ModelError(
            "params.json has model_type 'mamba', which needs a state space layer (Codestral Mamba): Noria has none; "
            "it supports transformer"
        )
    if kind != "transformer":
        raise ModelError(f"params.json has model_type {short(kind)}; Noria supports transformer")
    for key, what in MISSING.items():
        if not _is_off(raw.get(key)):
            raise ModelError(
                f"params.json has {key} {short(raw[key])}, which needs {what}: Noria has none; choose another model"
            )
    _, harmless = unknown_keys(raw.values, KNOWN)
    check_keys(raw.values, KNOWN.union(harmless), FILE)
    raw.check(ONLY)


def _is_off(value: Any) -> bool:
    """Return whether an unsupported feature is unused: null, 0, or an object that is empty or says so."""
    if not isinstance(value, dict):
        return value is None or value == 0
    return not value or value.get("enable") is False or value.get("rank") == 0


def _window(raw: Fields) -> tuple[Any, str]:
    """Return the window, or windows, and the key: `_sliding_window` is `sliding_window`, too."""
    names = [name for name in ("sliding_window", "_sliding_window") if raw.get(name) is not None] or ["sliding_window"]
    if raw.get(names[0]) != raw.get(names[-1]):
        raise ModelError(
            f"params.json has sliding_window {short(raw[names[0]])} and _sliding_window {short(raw[names[1]])}; "
            "they mean the same, remove one"
        )
    return raw.get(names[0]), names[0]


def _experts(raw: object) -> dict[str, Any]:
    """Return the fields of experts; none for a dense model. A key that is null is not set."""
    known = (*EXPERTS, *EXPERT_GROUPS, *EXPERT_TRAINING)
    moe = check_keys({} if raw is None else raw, known, f"moe in {FILE}")
    for key in EXPERT_GROUPS:
        if moe.get(key) not in (1, None):
            raise ModelError(f"params.json has moe.{key} {short(moe[key])}; Noria supports 1 group of experts")
    found = {key: moe[key] for key in EXPERTS if moe.get(key) is not None}
    if any(value is not None for value in moe.values.values()) and not moe.get("num_experts"):
        raise ModelError("params.json has moe without num_experts; Noria needs a number of at least 1")
    return found


def _yarn(params: Fields, *, latent: bool) -> dict[str, Any]:
    """Return YaRN: `beta` is the fast end of the ramp, `alpha` the slow one; `apply_scale` false leaves q and k alone.

    `apply_scale` of latent attention is of whole scores, as in vLLM, not of the rotating channels alone.
    """
    if params.get("yarn") is None:
        return {}
    yarn = check_keys(params["yarn"], ("factor", ORIGINAL, "beta", "alpha", "apply_scale"), f"yarn in {FILE}")
    apply = yarn.get("apply_scale", True)
    if not isinstance(apply, bool):
        raise ModelError(f"params.json has apply_scale {short(apply)} in yarn; it must be true or false")
    return {
        "rope_type": "yarn",
        "factor": yarn.positive("factor"),
        ORIGINAL: yarn.positive(ORIGINAL),
        "beta_fast": yarn.positive("beta", 32.0),
        "beta_slow": yarn.positive("alpha", 1.0),
        "attention_factor": None if apply and not latent else 1.0,
        **({"mscale": 0.0 if apply else 1.0, "mscale_all_dim": 1.0} if latent else {}),
    }


def _temperature(params: Fields) -> dict[str, Any]:
    if params.get("llama_4_scaling") is None:
        return {}
    scaling = check_keys(params["llama_4_scaling"], (ORIGINAL, "beta"), f"llama_4_scaling in {FILE}")
    return {ORIGINAL: scaling.get(ORIGINAL), "beta": scaling.number("beta")}


def _max_position(raw: Fields, rope: Mapping[str, Any]) -> int:
    declared = raw.optional_size("max_seq_len") or raw.optional_size("max_position_embeddings")
    return declared or (int(rope["factor"] * rope[ORIGINAL]) if rope else MAX_POSITION)
