"""VisionConfig from the fields of an image encoder, whatever the file's format. No torch.

`vision_config` of a config.json and the fields beside it, and `vision_encoder` of Mistral's params.json, become these.
"""

from collections.abc import Mapping
from typing import Any

from model.checkpoint.configs.fields import Fields, check_keys
from model.config.vision import VisionConfig
from model.errors import ModelError, short

HF_FILE, NATIVE_FILE = "vision_config in config.json", "vision_encoder in params.json"
NORM = "add_pre_mm_projector_layer_norm"
HF_DEFAULTS: Mapping[str, Any] = {
    "model_type": None,
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
OUTER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral3": {
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": False,
        "spatial_merge_size": 2,
        NORM: True,
    },
    "llava": {
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "multimodal_projector_bias": True,
        "spatial_merge_size": 1,
        NORM: False,
    },
}
"""The same for fields beside `vision_config`, by the model that has them; a llava model has no merge and no norm."""
ONLY: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("pixtral",),
    "num_channels": (3,),
    "attention_bias": (False, None),
    "vision_feature_layer": (-1,),
    "vision_feature_select_strategy": ("full",),
    "projector_hidden_act": ("gelu",),
}
"""Fields that may only have the values which describe what Noria does."""
MERGE, BIAS = "patch_merge", "multimodal_projector_bias"
NATIVE = frozenset(
    (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size"),
        *("max_image_size", "num_channels", "rope_theta", "adapter_bias", "spatial_merge_size", NORM),
        *("mm_projector_id", "image_token_id", "image_break_token_id", "image_end_token_id"),
    )
)
"""Keys of `vision_encoder`. The tokenizer knows the ids, by name."""


def read_vision(raw: Fields) -> VisionConfig:
    """Read an image encoder. Raises ModelError, which names the field and its value, for one that Noria does not have.

    The fields are those of `vision_config`, with `norm_eps`, and those beside it about what joins it to the text model.
    """
    raw.check(ONLY)
    dim, n_heads = (raw.size(key) for key in ("hidden_size", "num_attention_heads"))
    head_dim = raw.optional_size("head_dim") or dim // n_heads
    if head_dim * n_heads != dim:
        raise ModelError(
            f"{raw.file} must have heads of hidden_size / num_attention_heads, {dim} / {n_heads}, in head_dim; "
            f"it has {head_dim}"
        )
    return VisionConfig(
        dim=dim,
        n_layers=raw.n_layers("num_hidden_layers"),
        n_heads=n_heads,
        head_dim=head_dim,
        hidden_dim=raw.size("intermediate_size"),
        patch_size=raw.size("patch_size"),
        image_size=raw.size("image_size"),
        rope_theta=raw.positive("rope_theta", 10_000.0),
        norm_eps=raw.positive("norm_eps", 1e-5),
        merge=raw.size("spatial_merge_size"),
        adapter_norm=raw.flag(NORM),
        adapter_bias=raw.flag(BIAS),
        hidden_act=raw["hidden_act"],
    )


def hf_vision(raw: Mapping[str, Any]) -> Fields:
    """Return the fields of the encoder in a `config.json` of text and images. Raises ModelError for a wrong one."""
    inner, kind = raw.get("vision_config"), raw["model_type"]
    if not isinstance(inner, dict):
        raise ModelError(f"config.json must have an object in vision_config, it has {short(inner)}")
    defaults = {**OUTER_DEFAULTS[kind], "projector_hidden_act": "gelu"}
    outer = Fields({key: raw.get(key, default) for key, default in defaults.items()}, "config.json")
    outer.check(ONLY)
    if kind == "mistral3" and outer.size("spatial_merge_size") < 2:
        raise ModelError("config.json has spatial_merge_size 1; Noria supports 2 and more in a mistral3 model")
    bias, theta = outer.flag(BIAS), inner.get("rope_theta")
    if (rope := inner.get("rope_parameters")) is not None:  # transformers 5
        known = check_keys(rope, ("rope_type", "rope_theta"), f"rope_parameters of {HF_FILE}")
        known.check({"rope_type": ("axial", "default")})
        theta = known.get("rope_theta")
    return Fields({**HF_DEFAULTS, **inner, **outer.values, BIAS: bias, "rope_theta": theta, "norm_eps": None}, HF_FILE)


def native_vision(raw: object) -> Fields:
    """Return the fields of `vision_encoder` in a `params.json`. Raises ModelError also for an unknown key."""
    known = check_keys(raw, NATIVE, NATIVE_FILE)
    known.check({"mm_projector_id": (MERGE, None, "")})
    merge, merges = known.optional_size("spatial_merge_size") or 1, known.get("mm_projector_id") == MERGE
    if (merge > 1) != merges:
        raise ModelError(
            f"{NATIVE_FILE} has spatial_merge_size {merge} and mm_projector_id {short(known.get('mm_projector_id'))}; "
            f"a size of 2 and more belongs to {MERGE!r}"
        )
    values = {BIAS: known.get("adapter_bias", True), NORM: False, **known.values, "spatial_merge_size": merge}
    size = known.optional_size("max_image_size") or known.get("image_size")
    return Fields(values | {"image_size": size, "hidden_act": "silu"}, NATIVE_FILE, {BIAS: "adapter_bias"})
