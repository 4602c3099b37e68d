"""Model families, one row each, and ModelConfig from `config.json` or `params.json`. No torch.

All else about a family is read from its checkpoint: windows, RoPE, head sizes and experts are never assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from model.checkpoint.configs.audio import REALTIME, read_audio
from model.checkpoint.configs.fields import (
    dtype_of,
    number,
    number_of_layers,
    optional_size,
    present_shards,
    repeated,
    size,
    tied_head,
)
from model.checkpoint.configs.latent import check_head_dim, read_latent
from model.checkpoint.configs.native import read_params
from model.checkpoint.configs.rope import RopeConfig, read_rope
from model.checkpoint.configs.vision import OUTER_DEFAULTS as IMAGES
from model.checkpoint.configs.vision import read_vision
from model.checkpoint.files import layout, read_json
from model.checkpoint.gguf.open import GgufModel, open_gguf
from model.checkpoint.model_files import is_gguf
from model.config.latent import LatentConfig
from model.config.model import ModelConfig
from model.errors import ModelError, one_line, short

FILE = "config.json"


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of a `model_type` for fields that its `config.json` does not set, as in transformers.

    `head_dim` None is hidden_size / num_attention_heads, `n_kv_heads` None is num_attention_heads. `windows` says what
    the family has: none whatever the file says, one for all layers, or one for the layers that `layer_types` names.
    `experts` are the keys of a sparse family, each with its field of ModelConfig. `latent` families have latent
    attention. `defaults` are values of other keys, `only` the values of keys which describe what Noria does.
    """

    name: str
    rope_theta: float = 10_000.0
    sliding_window: int | None = None
    experts: Mapping[str, str] = field(default_factory=dict)
    head_dim: int | None = None
    n_kv_heads: int | None = 8
    rope_parameters: Mapping[str, Any] | None = None
    windows: Literal["none", "one", "by type"] = "one"
    latent: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("mistral", sliding_window=4096, windows="by type"),
        Family("ministral", sliding_window=4096, windows="by type"),
        Family(
            "ministral3",
            head_dim=128,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        ),
        Family(
            "mixtral",
            rope_theta=1_000_000.0,
            experts={"num_local_experts": "n_experts", "num_experts_per_tok": "n_experts_per_token"},
        ),
        Family(
            "mistral4",
            n_kv_heads=None,
            windows="none",
            latent=True,
            experts={
                "n_routed_experts": "n_experts",
                "num_experts_per_tok": "n_experts_per_token",
                "moe_intermediate_size": "expert_hidden_dim",
                "n_shared_experts": "n_shared_experts",
                "first_k_dense_replace": "first_k_dense_replace",
                "routed_scaling_factor": "routed_scale",
            },
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 128.0,
                "original_max_position_embeddings": 8192,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
            defaults={
                "q_lora_rank": 1024,
                "kv_lora_rank": 256,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 128,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 2048,
                "n_shared_experts": 1,
                "first_k_dense_replace": 0,
                "routed_scaling_factor": 1.0,
            },
            only={"n_group": (1, None), "topk_group": (1, None), "norm_topk_prob": (True,), "rope_interleave": (True,)},
        ),
        Family("llama", n_kv_heads=None, windows="none"),
    )
}
WRAPPERS: Mapping[str, str] = {"mistral3": "mistral", "llava": "llama", "voxtral": "llama"}
"""Models with an encoder, each with the family of its text if `text_config` names none. Pixtral 12B is a llava."""

_LARGE_4 = "a sparse index of tokens, learned RoPE scales and caches shared by layers (Mistral Large 4)"
_MISSING: Mapping[str, str] = {
    "mistral_large4": _LARGE_4,
    "mistral_large4_text": _LARGE_4,
    "deepseek_v3": "a sigmoid router with a correction bias and groups of experts (DeepSeek V3)",
    "voxtral_realtime": REALTIME,
    "mamba": "a state space layer (Mamba)",
    "mamba2": "a state space layer (Codestral Mamba)",
    "pixtral": "an image encoder without a text model (Pixtral)",
}
"""Missing features of Noria, by the `model_type` that needs them."""

_REFUSED = ("attention_bias", "mlp_bias", "use_qk_norm", "attn_logit_softcapping", "final_logit_softcapping")
"""Fields that would change the computation."""


def read_config(directory: Path, *, max_model_len: int | None = None) -> ModelConfig:
    """Read the ModelConfig from `config.json`, `params.json` or the metadata of a GGUF file.

    `max_model_len` is the longest sequence to serve. Dynamic RoPE scaling is computed for that length, and extends
    `max_position` to it, up to `factor` times the trained context. The output head is tied exactly if no file of
    weights has it; without these files the configuration decides.
    Raises ModelError, which names the field, its value and what is supported.
    """
    if is_gguf(directory):
        return gguf_config(open_gguf(directory), max_model_len)
    native = layout(directory) == "native"
    try:
        if native:
            return read_params(directory)
        return _hf_config(read_json(directory / FILE), directory, max_model_len)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        name = "params.json" if native else FILE
        raise ModelError(f"{name} has a value that no model can have: {one_line(error)}") from error


def gguf_config(model: GgufModel, max_model_len: int | None = None) -> ModelConfig:
    """Read the ModelConfig of a GGUF model. Raises ModelError as `read_config` does."""
    try:
        config = _hf_config(model.config, None, max_model_len)
        return replace(config, vision=model.encoder.config) if model.encoder else config
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        name = model.index.paths[0].name
        raise ModelError(f"{name} has a value that no model can have: {one_line(error)}") from error


def text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a `config.json` about the text model: `text_config` of a model with an encoder, else all.

    The outer dtype holds for the text model if it has none of its own; whether the outer head is tied means nothing.
    Raises ModelError for a model with an encoder that has no such part.
    """
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in WRAPPERS:
        return raw
    inner = raw.get("text_config")
    if not isinstance(inner, dict):
        raise ModelError(f"config.json of a {kind} model must have an object in text_config, it has {short(inner)}")
    shared = ("dtype", "torch_dtype")
    outer = {key: raw.get(key) for key in shared if inner.get(key) is None}
    return {**inner, **outer, "model_type": inner.get("model_type") or WRAPPERS[kind]}


def _hf_config(whole: Mapping[str, Any], directory: Path | None, max_model_len: int | None) -> ModelConfig:
    """Read the ModelConfig from a `config.json`, and from the headers of the directory's weights if there are any."""
    text = text_config(whole)
    family, is_inner = _hf_family(text), text is not whole
    raw = {**family.defaults, **text}
    if is_inner and family.name == "mistral":  # transformers takes it for ministral only where it stands alone
        family = replace(family, windows="one")
    n_heads, dim = (size(raw, key, FILE) for key in ("num_attention_heads", "hidden_size"))
    n_layers = number_of_layers(raw, "num_hidden_layers", FILE)
    head_dim = optional_size(raw, "head_dim", FILE, family.head_dim) or dim // n_heads
    windows = _hf_windows(raw, family, n_layers)
    rope, latent = _hf_rope(raw, family, head_dim, max_model_len), None
    if family.latent:
        latent = _hf_latent(raw, rope)
        head_dim = latent.head_dim
    if rope.full_rope is not None:
        _check_layer_types(raw, family, windows)
    shards = () if directory is None else present_shards(directory)
    return ModelConfig(
        family=family.name,
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=optional_size(raw, "num_key_value_heads", FILE, family.n_kv_heads) or n_heads,
        head_dim=head_dim,
        hidden_dim=size(raw, "intermediate_size", FILE),
        vocab_size=size(raw, "vocab_size", FILE),
        norm_eps=number(raw, "rms_norm_eps", FILE),
        rope_theta=rope.rope.theta,
        rope_fraction=rope.rope.fraction,
        rope_scaling=rope.rope.scaling,
        rope_dim=rope.rope.dim if rope.rope.dim != head_dim else None,
        full_rope=rope.full_rope,
        query_temperature=rope.query_temperature,
        latent=latent,
        max_position=rope.max_position,
        windows=windows,
        **_hf_experts(raw, family, n_layers),
        tied_head=tied_head(shards, bool(raw.get("tie_word_embeddings", False))),
        dtype=dtype_of(raw.get("dtype") or raw.get("torch_dtype"), shards),
        vision=read_vision(whole, shards) if whole.get("model_type") in IMAGES else None,
        audio=read_audio(whole, shards) if whole.get("model_type") == "voxtral" else None,
    )


def _hf_family(raw: Mapping[str, Any]) -> Family:
    kind = raw.get("model_type", "")
    if not isinstance(kind, str):
        raise ModelError(f"config.json must have a name in model_type, it has {short(kind)}")
    served = f"Noria supports {', '.join((*FAMILIES, *WRAPPERS))}"
    if kind in _MISSING:
        raise ModelError(f"config.json has model_type {kind!r}, which needs {_MISSING[kind]}: Noria has none; {served}")
    if kind not in FAMILIES and raw.get("auto_map"):
        raise ModelError(
            f"config.json has model_type {short(kind)} with code of its own (auto_map), which Noria never runs; "
            f"{served}"
        )
    if kind not in FAMILIES:
        raise ModelError(f"config.json has model_type {short(kind)}; {served}")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"config.json has hidden_act {raw['hidden_act']!r}; Noria supports silu")
    for key, values in FAMILIES[kind].only.items():
        if key in raw and raw[key] not in values:
            raise ModelError(f"config.json has {key} {short(raw[key])}; Noria supports {values[0]!r}")
    for key in _REFUSED:
        if raw.get(key):
            value = "true" if raw[key] is True else short(raw[key])
            raise ModelError(f"config.json has {key} {value}; Noria supports models without it")
    return FAMILIES[kind]


def _hf_experts(raw: Mapping[str, Any], family: Family, n_layers: int) -> dict[str, Any]:
    """Return the fields of ModelConfig about experts; none if all layers are dense."""
    found = {name: number(raw, key, FILE) for key, name in family.experts.items()}
    return found if found.get("first_k_dense_replace", 0) < n_layers else {}


def _hf_latent(raw: Mapping[str, Any], rope: RopeConfig) -> LatentConfig:
    latent = read_latent(raw, FILE, rope.rope.scaling)
    if latent is None:
        raise ModelError(f"config.json has no kv_lora_rank, which a {raw['model_type']} model needs")
    check_head_dim(latent, optional_size(raw, "head_dim", FILE), FILE)
    return latent


def _hf_rope(raw: Mapping[str, Any], family: Family, head_dim: int, max_model_len: int | None) -> RopeConfig:
    """Read RoPE of a head; in latent attention of the part that rotates, whose share of a head the file may repeat."""
    silent = raw.get("rope_parameters") is None and raw.get("rope_scaling") is None
    if silent and family.rope_parameters is not None:
        raw = {**raw, "rope_parameters": family.rope_parameters}
    if family.latent:
        head_dim = size(raw, "qk_rope_head_dim", FILE)
        raw = {**raw, "partial_rotary_factor": None}
        raw |= {key: _whole(raw[key]) for key in ("rope_parameters", "rope_scaling") if key in raw}
    return read_rope(
        raw,
        default_theta=family.rope_theta,
        head_dim=head_dim,
        max_position=size(raw, "max_position_embeddings", FILE),
        max_model_len=max_model_len,
    )


def _whole(parameters: Any) -> Any:
    """Return RoPE parameters that leave out no part of a head."""
    if not isinstance(parameters, dict):
        return parameters
    return {key: value for key, value in parameters.items() if key != "partial_rotary_factor"}


def _hf_windows(raw: Mapping[str, Any], family: Family, n_layers: int) -> tuple[int | None, ...]:
    """Give the window to the layers that `layer_types` names; without it, to all. A list of windows repeats.

    Some families read less, as in transformers; layer types that say otherwise are then refused.
    """
    if family.windows == "none":
        return (None,) * n_layers
    window = raw.get("sliding_window", family.sliding_window)
    every = repeated(window, n_layers, f"sliding_window in {FILE}")
    if not (kinds := raw.get("layer_types")):
        return every
    of_types = {"sliding_attention": window, "full_attention": None}
    for kind in kinds:
        if kind not in of_types:
            raise ModelError(f"config.json has {short(kind)} in layer_types; Noria supports {', '.join(of_types)}")
    windows = tuple(of_types[kind] for kind in kinds)
    if family.windows == "one" and windows != every:
        raise ModelError(
            f"config.json has sliding_window {short(window)} and {short(kinds)} in layer_types; a {family.name} model "
            "has its window in all layers: remove one of them"
        )
    return windows


def _check_layer_types(raw: Mapping[str, Any], family: Family, windows: tuple[int | None, ...]) -> None:
    """Raise ModelError if the window does not say of which type a layer is: its RoPE belongs to that."""
    if family.windows != "by type":
        raise ModelError(
            f"config.json has RoPE parameters per layer type; a {family.name} model has none: remove all but one"
        )
    kinds = raw.get("layer_types") or ()
    if any(kind == "sliding_attention" and window is None for kind, window in zip(kinds, windows, strict=False)):
        raise ModelError(
            "config.json has RoPE parameters per layer type and no sliding_window; Noria supports them for layers with "
            "and without a window"
        )
