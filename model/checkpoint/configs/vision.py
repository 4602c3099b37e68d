"""VisionConfig from `vision_config` in a config.json, or from `vision_encoder` in Mistral's params.json. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from model.checkpoint.configs.fields import (
    check_keys,
    check_values,
    has_encoder,
    number_of_layers,
    optional_size,
    positive,
    size,
)
from model.checkpoint.files import ShardFile
from model.config.vision import VisionConfig
from model.errors import ModelError, short

HF_FILE, NATIVE_FILE = "vision_config in config.json", "vision_encoder in params.json"
HF_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
"""The values of transformers for fields that `vision_config` does not have. Pixtral 12B's has few."""
HF_ONLY: Mapping[str, Any] = {"model_type": "pixtral", "num_channels": 3}
"""Fields of `vision_config`, each with the value that describes what Noria does."""
OUTER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral3": {
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": False,
        "spatial_merge_size": 2,
    },
    "llava": {
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "multimodal_projector_bias": True,
    },
}
"""The same for fields beside `vision_config`, by the model that has them."""
OUTER_ONLY: Mapping[str, Any] = {
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "projector_hidden_act": "gelu",
}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
NATIVE = frozenset(
    (
        *(*SIZES, "max_image_size", "num_channels", "rope_theta", "adapter_bias", "spatial_merge_size"),
        *("mm_projector_id", "add_pre_mm_projector_layer_norm"),
        *("image_token_id", "image_break_token_id", "image_end_token_id"),
    )
)
"""Keys of `vision_encoder`. The tokenizer knows the ids, by name."""
MERGE = "patch_merge"


def read_vision(raw: Mapping[str, Any], shards: Sequence[ShardFile]) -> VisionConfig | None:
    """Read the image encoder of a `config.json` of text and images; None for a model whose files do not have it.

    Raises ModelError, which names the field and its value, for an encoder that Noria does not have.
    """
    if not has_encoder(shards, raw.get("vision_config")):
        return None
    if not isinstance(raw.get("vision_config"), dict):
        raise ModelError(f"config.json must have an object in vision_config, it has {short(raw.get('vision_config'))}")
    outer = {**OUTER_DEFAULTS[raw["model_type"]], "projector_hidden_act": "gelu", **raw}
    inner = {**HF_DEFAULTS, **raw["vision_config"]}
    _check_values(inner, HF_ONLY, HF_FILE)
    _check_values(outer, OUTER_ONLY, "config.json")
    merges = raw["model_type"] == "mistral3"
    if merges and size(outer, "spatial_merge_size", "config.json") < 2:
        raise ModelError("config.json has spatial_merge_size 1; Noria supports 2 and more in a mistral3 model")
    return VisionConfig(
        **_sizes(inner, HF_FILE),
        image_size=size(inner, "image_size", HF_FILE),
        rope_theta=_hf_theta(inner),
        merge=outer["spatial_merge_size"] if merges else 1,
        adapter_norm=merges,
        adapter_bias=_flag(outer, "multimodal_projector_bias", "config.json"),
        hidden_act=inner["hidden_act"],
    )


def read_native_vision(raw: Any, shards: Sequence[ShardFile]) -> VisionConfig | None:
    """Read the same from `vision_encoder` of a `params.json`. Raises ModelError also for an unknown key."""
    if raw is None or not has_encoder(shards, raw):
        return None
    known = check_keys(raw, NATIVE, NATIVE_FILE)
    _check_values({"num_channels": 3, **known}, {"num_channels": 3}, NATIVE_FILE)
    return VisionConfig(
        **_sizes(known, NATIVE_FILE),
        image_size=optional_size(known, "max_image_size", NATIVE_FILE) or size(known, "image_size", NATIVE_FILE),
        rope_theta=positive(known, "rope_theta", NATIVE_FILE, 10_000.0),
        merge=_native_merge(known),
        adapter_norm=_flag({"add_pre_mm_projector_layer_norm": False, **known}, "add_pre_mm_projector_layer_norm"),
        adapter_bias=_flag({"adapter_bias": True, **known}, "adapter_bias"),
    )


def _sizes(raw: Mapping[str, Any], file: str) -> dict[str, Any]:
    dim, n_heads = (size(raw, key, file) for key in ("hidden_size", "num_attention_heads"))
    head_dim = optional_size(raw, "head_dim", file) or dim // n_heads
    if head_dim * n_heads != dim:
        raise ModelError(
            f"{file} must have heads of hidden_size / num_attention_heads, {dim} / {n_heads}, in head_dim; "
            f"it has {head_dim}"
        )
    return {
        "dim": dim,
        "n_layers": number_of_layers(raw, "num_hidden_layers", file),
        "n_heads": n_heads,
        "head_dim": head_dim,
        "hidden_dim": size(raw, "intermediate_size", file),
        "patch_size": size(raw, "patch_size", file),
    }


def _hf_theta(raw: Mapping[str, Any]) -> float:
    """Read `rope_theta`, in transformers 5 within `rope_parameters`."""
    rope = raw.get("rope_parameters")
    if rope is None:
        return positive(raw, "rope_theta", HF_FILE, 10_000.0)
    where = f"rope_parameters of {HF_FILE}"
    known = check_keys(rope, ("rope_type", "rope_theta"), where)
    if known.get("rope_type", "axial") not in ("axial", "default"):
        raise ModelError(f"{where} has rope_type {short(known['rope_type'])}; Noria supports axial")
    return positive(known, "rope_theta", where, 10_000.0)


def _native_merge(raw: Mapping[str, Any]) -> int:
    """Return the patches along a side of the square that becomes one token."""
    projector = raw.get("mm_projector_id") or None
    if projector not in (None, MERGE):
        raise ModelError(f"{NATIVE_FILE} has mm_projector_id {short(projector)}; Noria supports {MERGE!r}")
    merge = optional_size(raw, "spatial_merge_size", NATIVE_FILE) or 1
    if (merge > 1) != (projector == MERGE):
        raise ModelError(
            f"{NATIVE_FILE} has spatial_merge_size {merge} and mm_projector_id {short(projector)}; a size of 2 and "
            f"more belongs to {MERGE!r}"
        )
    return merge


def _check_values(raw: Mapping[str, Any], only: Mapping[str, Any], where: str) -> None:
    check_values(raw, only, where)
    if raw.get("attention_bias"):
        raise ModelError(f"{where} has attention_bias {short(raw['attention_bias'])}; Noria supports models without it")


def _flag(raw: Mapping[str, Any], key: str, where: str = NATIVE_FILE) -> bool:
    value = raw[key]
    if not isinstance(value, bool):
        raise ModelError(f"{where} has {key} {short(value)}; it must be true or false")
    return value
