"""RoPE in `config.json`: `rope_theta` and `rope_scaling` (published), or `rope_parameters` (transformers 5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model.config import RopeScaling
from model.errors import ModelError, short

_SUPPORTED = "default, linear, dynamic, llama3, yarn"


@dataclass(frozen=True, slots=True)
class Rope:
    """Base, context in tokens, fraction of the pairs that are rotated, and scaling."""

    theta: float
    max_position: int
    fraction: float = 1.0
    scaling: RopeScaling | None = None


def read_rope(
    raw: Mapping[str, Any],
    *,
    default_theta: float,
    head_dim: int,
    max_position: int,
    max_model_len: int | None,
) -> Rope:
    """RoPE of a `config.json`; `rope_parameters` overrides `rope_scaling`.

    Raises ModelError for a type or a combination that is not supported.
    """
    parameters = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    if nested := [key for key, value in parameters.items() if isinstance(value, dict)]:
        raise ModelError(
            f"config.json has RoPE parameters per layer type ({', '.join(nested)}); Noria supports one set"
        )
    theta = parameters.get("rope_theta") or raw.get("rope_theta") or default_theta
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    fraction = _fraction(raw, parameters)
    if kind == "default":
        return Rope(theta, max_position, fraction)
    if kind == "dynamic":
        factor, served = _factor(parameters), max(max_model_len or max_position, max_position)
        theta = dynamic_theta(theta, factor, served / max_position, head_dim)
        return Rope(theta, min(served, int(factor * max_position)), fraction)
    if kind not in _SCALINGS:
        raise ModelError(f"config.json has rope_type {kind!r}; Noria supports {_SUPPORTED}")
    original = parameters.get("original_max_position_embeddings") or max_position
    return Rope(theta, max_position, fraction, _SCALINGS[kind](parameters, original))


def dynamic_theta(theta: float, factor: float, stretch: float, head_dim: int) -> float:
    """Base of dynamic NTK scaling for one length; `stretch` is that length divided by the trained one.

    theta * (factor * stretch - (factor - 1)) ** (d / (d - 2)), as transformers computes it; theta itself at stretch 1.
    """
    return theta * (factor * stretch - (factor - 1)) ** (head_dim / (head_dim - 2))


def _fraction(raw: Mapping[str, Any], parameters: Mapping[str, Any]) -> float:
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        raise ModelError(f"config.json has partial_rotary_factor {partial}; Noria supports 1.0")
    fraction = raw.get("rope_fraction")
    return 1.0 if fraction is None else fraction


def _factor(parameters: Mapping[str, Any]) -> float:
    factor = parameters.get("factor")
    if not isinstance(factor, int | float) or factor < 1:
        raise ModelError(f"config.json must have a RoPE scaling factor of at least 1, it has {short(factor)}")
    return float(factor)


def _linear(parameters: Mapping[str, Any], original: int) -> RopeScaling:
    return RopeScaling("linear", _factor(parameters))


def _llama3(parameters: Mapping[str, Any], original: int) -> RopeScaling:
    return RopeScaling(
        "llama3",
        _factor(parameters),
        original,
        low_freq_factor=parameters.get("low_freq_factor", 1.0),
        high_freq_factor=parameters.get("high_freq_factor", 4.0),
    )


def _yarn(parameters: Mapping[str, Any], original: int) -> RopeScaling:
    if parameters.get("truncate") is False:
        raise ModelError("config.json has truncate false in its yarn scaling; Noria supports true only")
    for key in ("mscale", "mscale_all_dim"):
        if parameters.get(key):
            raise ModelError(f"config.json has {key} {parameters[key]} in its yarn scaling; Noria does not support it")
    return RopeScaling(
        "yarn",
        _factor(parameters),
        original,
        beta_fast=parameters.get("beta_fast") or 32.0,
        beta_slow=parameters.get("beta_slow") or 1.0,
        attention_factor=parameters.get("attention_factor"),
    )


def _divisors(parameters: Mapping[str, Any], original: int) -> RopeScaling:
    """Only in the configuration of a GGUF file, see gguf/rope.py."""
    return RopeScaling("divisors", 1.0, divisors=tuple(parameters["divisors"]))


_SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "divisors": _divisors}
