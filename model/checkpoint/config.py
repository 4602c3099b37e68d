"""ModelConfig from `config.json`, `params.json` or the metadata of a GGUF file. No torch.

All files become fields in the form of `config.json`, which one function reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.checkpoint.configs.audio import hf_audio, read_audio
from model.checkpoint.configs.fields import Fields, dtype_of, has_encoder, present_shards, repeated, tied_head
from model.checkpoint.configs.latent import read_latent
from model.checkpoint.configs.params import EXPERTS, native_encoders, native_text, unknown_params
from model.checkpoint.configs.params import FILE as PARAMS
from model.checkpoint.configs.rope import RopeConfig, read_rope
from model.checkpoint.configs.vision import OUTER_DEFAULTS as IMAGES
from model.checkpoint.configs.vision import hf_vision, read_vision
from model.checkpoint.families import WRAPPERS, Family, family_of
from model.checkpoint.files import ShardFile, layout, read_json
from model.checkpoint.gguf.config import EXPERTS as GGUF_EXPERTS
from model.checkpoint.gguf.config import OWN
from model.checkpoint.gguf.open import GgufModel, open_gguf
from model.checkpoint.model_files import is_gguf
from model.config.model import ModelConfig
from model.errors import ModelError, one_line, short

FILE = "config.json"


def read_config(directory: Path, *, max_model_len: int | None = None) -> ModelConfig:
    """Read the ModelConfig from `config.json`, `params.json` or the metadata of a GGUF file.

    `max_model_len` is the longest sequence to serve. Dynamic RoPE scaling is computed for that length, and extends
    `max_position` to it, up to `factor` times the trained context. The output head is tied exactly if no file of
    weights has it; without these files the configuration decides.
    Raises ModelError, which names the field, its value and what is supported.
    """
    if is_gguf(directory):
        return gguf_config(open_gguf(directory), max_model_len)
    if layout(directory) == "native":
        return _checked(PARAMS, lambda: _native_config(directory))
    return _checked(FILE, lambda: _hf_config(directory, max_model_len))


def gguf_config(model: GgufModel, max_model_len: int | None = None) -> ModelConfig:
    """Read the ModelConfig of a GGUF model. Raises ModelError as `read_config` does."""
    text, encoder = Fields(model.config, model.index.paths[0].name, {**OWN, **GGUF_EXPERTS}), model.encoder
    config = _checked(text.file, lambda: _text(family_of(text), text, (), max_model_len))
    return replace(config, vision=encoder.config) if encoder else config


def doubts(directory: Path) -> tuple[str, ...]:
    """Return lines about a model's files for their user."""
    if is_gguf(directory):
        return open_gguf(directory).doubts
    native = (directory / PARAMS).is_file() and layout(directory) == "native"
    return unknown_params(read_json(directory / PARAMS)) if native else ()


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


def _checked(file: str, read: Callable[[], ModelConfig]) -> ModelConfig:
    """Return what `read` reads. Raises ModelError for a value of another type or size than it can read."""
    try:
        return read()
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ModelError(f"{file} has a value that no model can have: {one_line(error)}") from error


def _native_config(directory: Path) -> ModelConfig:
    raw = read_json(directory / PARAMS)
    text, shards = native_text(raw), present_shards(directory)
    vision, audio = native_encoders(raw, shards)
    family = replace(family_of(text), experts={key: name for key, name in EXPERTS.items() if key in text})
    return _with_encoders(_text(family, text, shards), vision, audio)


def _hf_config(directory: Path, max_model_len: int | None) -> ModelConfig:
    whole = read_json(directory / FILE)
    text, kind = Fields(text_config(whole), FILE), whole.get("model_type")
    family = family_of(text)
    if text.values is not whole and family.name == "mistral":  # transformers takes it for ministral where it is alone
        family = replace(family, windows="one")
    shards = present_shards(directory)
    config = _text(family, replace(text, values={**family.defaults, **text.values}), shards, max_model_len)
    vision = kind in IMAGES and has_encoder(shards, whole.get("vision_config"))
    audio = kind == "voxtral" and has_encoder(shards, whole.get("audio_config"))
    return _with_encoders(config, hf_vision(whole) if vision else None, hf_audio(whole) if audio else None)


def _with_encoders(config: ModelConfig, vision: Fields | None, audio: Fields | None) -> ModelConfig:
    return replace(
        config,
        vision=None if vision is None else read_vision(vision),
        audio=None if audio is None else read_audio(audio),
    )


def _text(family: Family, raw: Fields, shards: tuple[ShardFile, ...], max_model_len: int | None = None) -> ModelConfig:
    """Read the text model from the fields of a `config.json`, and from the headers of weights if there are any."""
    n_heads, dim = (raw.size(key) for key in ("num_attention_heads", "hidden_size"))
    n_layers = raw.n_layers("num_hidden_layers")
    head_dim = raw.optional_size("head_dim", family.head_dim) or dim // n_heads
    windows = _windows(raw, family, n_layers)
    rope, latent = _rope(raw, family, head_dim, max_model_len), None
    if family.latent:
        latent = read_latent(raw, rope.rope.scaling)
        head_dim = latent.head_dim
    if rope.full_rope is not None:
        _check_layer_types(raw, family, windows)
    return ModelConfig(
        family=family.name,
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=raw.optional_size("num_key_value_heads", family.n_kv_heads) or n_heads,
        head_dim=head_dim,
        hidden_dim=raw.size("intermediate_size"),
        vocab_size=raw.size("vocab_size"),
        norm_eps=raw.number("rms_norm_eps"),
        rope_theta=rope.rope.theta,
        rope_fraction=rope.rope.fraction,
        rope_scaling=rope.rope.scaling,
        rope_dim=rope.rope.dim if rope.rope.dim != head_dim else None,
        full_rope=rope.full_rope,
        query_temperature=rope.query_temperature,
        latent=latent,
        max_position=rope.max_position,
        windows=windows,
        **_experts(raw, family, n_layers),
        tied_head=tied_head(shards, bool(raw.get("tie_word_embeddings", False))),
        dtype=dtype_of(raw.get("torch_dtype") if raw.get("dtype") is None else raw["dtype"], shards),
    )


def _experts(raw: Fields, family: Family, n_layers: int) -> dict[str, Any]:
    """Return the fields of ModelConfig about experts; none if all layers are dense."""
    found = {name: raw.number(key) for key, name in family.experts.items()}
    return found if found.get("first_k_dense_replace", 0) < n_layers else {}


def _rope(raw: Fields, family: Family, head_dim: int, max_model_len: int | None) -> RopeConfig:
    """Read RoPE of a head; in latent attention of the part that rotates, whose share of a head the file may repeat."""
    values = {**raw.values}
    if raw.get("rope_parameters") is None and raw.get("rope_scaling") is None and family.rope_parameters is not None:
        values["rope_parameters"] = family.rope_parameters
    if family.latent:
        head_dim = raw.size("qk_rope_head_dim")
        values["partial_rotary_factor"] = None
        values |= {key: _whole(values[key]) for key in ("rope_parameters", "rope_scaling") if key in values}
    return read_rope(
        replace(raw, values=values),
        default_theta=family.rope_theta,
        head_dim=head_dim,
        max_position=raw.size("max_position_embeddings"),
        max_model_len=max_model_len,
    )


def _whole(parameters: Any) -> Any:
    """Return RoPE parameters that leave out no part of a head."""
    if not isinstance(parameters, dict):
        return parameters
    return {key: value for key, value in parameters.items() if key != "partial_rotary_factor"}


def _windows(raw: Fields, family: Family, n_layers: int) -> tuple[int | None, ...]:
    """Give the window to the layers that `layer_types` names; without it, to all. A list of windows repeats.

    Some families read less, as in transformers; layer types that say otherwise are then refused.
    """
    if family.windows == "none":
        return (None,) * n_layers
    window = raw.get("sliding_window", family.sliding_window)
    every = repeated(window, n_layers, f"{raw.name('sliding_window')} in {raw.file}")
    if not (kinds := raw.get("layer_types")):
        return every
    of_types = {"sliding_attention": window, "full_attention": None}
    for kind in kinds:
        if kind not in of_types:
            raise ModelError(f"{raw.file} has {short(kind)} in layer_types; Noria supports {', '.join(of_types)}")
    windows = tuple(of_types[kind] for kind in kinds)
    if family.windows == "one" and windows != every:
        raise ModelError(
            f"{raw.file} has sliding_window {short(window)} and {short(kinds)} in layer_types; a {family.name} model "
            "has its window in all layers: remove one of them"
        )
    return windows


def _check_layer_types(raw: Fields, family: Family, windows: tuple[int | None, ...]) -> None:
    """Raise ModelError if the window does not say of which type a layer is: its RoPE belongs to that."""
    if family.windows != "by type":
        raise ModelError(
            f"{raw.file} has RoPE parameters per layer type; a {family.name} model has none: remove all but one"
        )
    kinds = raw.get("layer_types") or ()
    if any(kind == "sliding_attention" and window is None for kind, window in zip(kinds, windows, strict=False)):
        raise ModelError(
            f"{raw.file} has RoPE parameters per layer type and no sliding_window; Noria supports them for layers with "
            "and without a window"
        )
