"""RoPE as `config.json` writes it: `rope_theta` + `rope_scaling` (published) or `rope_parameters` (transformers 5)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model.config import RopeScaling
from model.errors import ModelError

_SUPPORTED = "default, linear, dynamic, llama3, yarn, proportional"


@dataclass(frozen=True, slots=True)
class Rope:
    """Base, share of the pairs that turn, and scaling."""

    theta: float
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
    """RoPE of a `config.json`; `rope_parameters` wins where both forms are present.

    Raises ModelError for a type or a combination that is not supported.
    """
    parameters = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    if nested := [key for key, value in parameters.items() if isinstance(value, dict)]:
        raise ModelError(f"config.json has RoPE parameters per layer type ({', '.join(nested)}), supported is one set")
    theta = parameters.get("rope_theta") or raw.get("rope_theta") or default_theta
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    fraction = _fraction(raw, parameters, kind)
    if kind == "default":
        return Rope(theta, fraction)
    if kind == "proportional":
        factor = parameters.get("factor") or 1.0
        return Rope(theta, fraction, RopeScaling("linear", factor) if factor != 1.0 else None)
    if kind == "dynamic":
        served = max(max_model_len or max_position, max_position)
        return Rope(dynamic_theta(theta, _factor(parameters), served / max_position, head_dim), fraction)
    if kind not in _SCALINGS:
        raise ModelError(f"config.json has rope_type {kind!r}, supported are {_SUPPORTED}")
    original = parameters.get("original_max_position_embeddings") or max_position
    return Rope(theta, fraction, _SCALINGS[kind](parameters, original))


def dynamic_theta(theta: float, factor: float, stretch: float, head_dim: int) -> float:
    """Base of dynamic NTK scaling, fixed for one length: `stretch` is that length over the trained one.

    theta * (factor * stretch - (factor - 1)) ** (d / (d - 2)), as transformers computes it. Nothing changes at 1.
    """
    return theta * (factor * stretch - (factor - 1)) ** (head_dim / (head_dim - 2))


def _fraction(raw: Mapping[str, Any], parameters: Mapping[str, Any], kind: str) -> float:
    fraction = raw.get("rope_fraction")
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial in (None, 1.0):
        return 1.0 if fraction is None else fraction
    # Only "proportional" keeps the frequencies of the whole head; other types squeeze them into the rotated part.
    if kind != "proportional":
        raise ModelError(f"config.json has partial_rotary_factor {partial} with rope_type {kind!r}, not 'proportional'")
    return partial


def _factor(parameters: Mapping[str, Any]) -> float:
    factor = parameters.get("factor")
    if not isinstance(factor, int | float) or factor < 1:
        raise ModelError(f"config.json must have a RoPE scaling factor of at least 1, it has {factor!r}")
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
        raise ModelError("config.json has truncate false in its yarn scaling, supported is true")
    return RopeScaling(
        "yarn",
        _factor(parameters),
        original,
        beta_fast=parameters.get("beta_fast") or 32.0,
        beta_slow=parameters.get("beta_slow") or 1.0,
        attention_factor=_yarn_attention(parameters),
    )


def _yarn_attention(parameters: Mapping[str, Any]) -> float | None:
    """DeepSeek's form of the factor: a ratio of two mscales. None: the paper's."""
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    above, below = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if not above or not below:
        return None
    log = 0.1 * math.log(_factor(parameters))
    return (above * log + 1) / (below * log + 1)


_SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
