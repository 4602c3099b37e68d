"""RoPE in Hugging Face's form: `rope_theta` and `rope_scaling` (published), or `rope_parameters` (transformers 5)."""

from dataclasses import dataclass, replace
from typing import Any

from model.checkpoint.configs.fields import Fields
from model.config.model import QueryTemperature, Rope, RopeScaling
from model.errors import ModelError, short

_SUPPORTED = "default, linear, dynamic, llama3, yarn"
_LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """RoPE, context in tokens, and the temperature of queries.

    `full_rope` is the RoPE of layers with full attention, where the file has parameters for each type of layer.
    """

    rope: Rope
    max_position: int
    query_temperature: QueryTemperature | None = None
    full_rope: Rope | None = None


def read_rope(
    raw: Fields,
    *,
    default_theta: float,
    head_dim: int,
    max_position: int,
    max_model_len: int | None,
) -> RopeConfig:
    """Read RoPE; `rope_parameters` overrides `rope_scaling`.

    Raises ModelError for a type or a combination that is not supported.
    """
    parameters = {**raw.object("rope_scaling"), **raw.object("rope_parameters")}
    served = max_model_len or max_position
    if not any(isinstance(value, dict) for value in parameters.values()):
        return _read(raw, Fields(parameters, raw.file), default_theta, head_dim, max_position, served)
    if unknown := [key for key in parameters if key not in _LAYER_TYPES]:
        raise ModelError(
            f"{raw.file} has RoPE parameters for {short(unknown[0])} beside those of a layer type; "
            f"Noria supports {', '.join(_LAYER_TYPES)}"
        )
    found = {
        kind: _read(raw, Fields(value, raw.file), default_theta, head_dim, max_position, served)
        for kind, value in parameters.items()
        if value is not None
    }
    if missing := set(raw.get("layer_types") or ()) & set(_LAYER_TYPES) - found.keys():
        raise ModelError(f"{raw.file} has no RoPE parameters for the layer type {min(missing)}; add them")
    return _of_both(found.get("sliding_attention"), found.get("full_attention"))


def _of_both(sliding: RopeConfig | None, full: RopeConfig | None) -> RopeConfig:
    """Read RoPE of two types of layers. A model whose layers are all of one type may have parameters for one only."""
    if sliding is None or full is None:
        return sliding or full  # type: ignore[return-value]  # one of them is there
    if sliding.query_temperature != full.query_temperature:
        raise ModelError("the model has a query temperature for one type of layer; Noria supports one for all layers")
    if sliding.rope == full.rope:
        return full
    return replace(sliding, max_position=min(sliding.max_position, full.max_position), full_rope=full.rope)


def _read(
    raw: Fields,
    parameters: Fields,
    default_theta: float,
    head_dim: int,
    max_position: int,
    served: int,
) -> RopeConfig:
    given = (value for value in (parameters.get("rope_theta"), raw.get("rope_theta")) if value is not None)
    theta = next(given, default_theta)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    fraction = raw.get("rope_fraction")
    rope = Rope(theta, _rotated(raw, parameters, head_dim), 1.0 if fraction is None else fraction)
    temperature = _temperature(raw, parameters)
    if kind == "default":
        return RopeConfig(rope, max_position, temperature)
    if kind == "dynamic":
        if rope.dim <= 2:
            raise ModelError(f"{raw.file} has rope_type 'dynamic', which needs a head_dim above 2, it has {rope.dim}")
        factor, served = _factor(parameters), max(served, max_position)
        theta = dynamic_theta(theta, factor, served / max_position, rope.dim)
        return RopeConfig(replace(rope, theta=theta), min(served, int(factor * max_position)), temperature)
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise ModelError(f"{raw.file} has rope_type {short(kind)}; Noria supports {_SUPPORTED}")
    scaling = _SCALINGS[kind](parameters, _original(raw, parameters) or max_position)
    return RopeConfig(replace(rope, scaling=scaling), max_position, temperature)


def dynamic_theta(theta: float, factor: float, stretch: float, rope_dim: int) -> float:
    """Return the base of dynamic NTK scaling for one length; `stretch` is that length divided by the trained one.

    theta * (factor * stretch - (factor - 1)) ** (d / (d - 2)), as transformers computes it; theta itself at stretch 1.
    """
    return theta * (factor * stretch - (factor - 1)) ** (rope_dim / (rope_dim - 2))


def _rotated(raw: Fields, parameters: Fields, head_dim: int) -> int:
    """Return how many values of a head rotate."""
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial is None:
        return head_dim
    if not isinstance(partial, int | float) or not 0 < partial <= 1:
        raise ModelError(
            f"{raw.file} has partial_rotary_factor {short(partial)}; Noria supports numbers above 0 and up to 1"
        )
    return int(head_dim * partial)


def _original(raw: Fields, parameters: Fields) -> Any:
    """Return the trained context. A value beside the parameters overrides theirs, as in transformers."""
    name = "original_max_position_embeddings"
    return raw.get(name) or parameters.get(name)


def _temperature(raw: Fields, parameters: Fields) -> QueryTemperature | None:
    """Return None for a beta of 0, with which the factor is 1 everywhere. In params.json it has a length of its own."""
    own = raw.object("llama_4_scaling")
    original: Any = own.get("original_max_position_embeddings") if own else _original(raw, parameters)
    beta = own.get("beta") if own else parameters.get("llama_4_scaling_beta")
    return None if beta is None or beta == 0 else QueryTemperature(original, beta)


def _factor(parameters: Fields) -> float:
    factor = parameters.get("factor")
    if not isinstance(factor, int | float) or factor < 1:
        raise ModelError(f"{parameters.file} must have a RoPE scaling factor of at least 1, it has {short(factor)}")
    return float(factor)


def _linear(parameters: Fields, original: int) -> RopeScaling:
    return RopeScaling("linear", _factor(parameters))


def _llama3(parameters: Fields, original: int) -> RopeScaling:
    return RopeScaling(
        "llama3",
        _factor(parameters),
        original,
        low_freq_factor=parameters.get("low_freq_factor", 1.0),
        high_freq_factor=parameters.get("high_freq_factor", 4.0),
    )


def _yarn(parameters: Fields, original: int) -> RopeScaling:
    return RopeScaling(
        "yarn",
        _factor(parameters),
        original,
        beta_fast=parameters.get("beta_fast") or 32.0,
        beta_slow=parameters.get("beta_slow") or 1.0,
        attention_factor=parameters.get("attention_factor"),
        mscale=parameters.get("mscale") or 0.0,
        mscale_all_dim=parameters.get("mscale_all_dim") or 0.0,
        truncate=parameters.get("truncate", True),
    )


def _divisors(parameters: Fields, original: int) -> RopeScaling:
    """Read divisors, which only the configuration of a GGUF file has, see gguf/rope.py."""
    return RopeScaling("divisors", 1.0, divisors=tuple(parameters["divisors"]))


_SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "divisors": _divisors}
