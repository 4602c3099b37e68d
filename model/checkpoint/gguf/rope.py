"""RoPE in the metadata of a GGUF file, as `rope_parameters` of a `config.json`. No torch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from model.errors import ModelError, short

Values = Mapping[str, Any]
"""Metadata without the prefix of the architecture."""


def read_rope(values: Values, head_dim: int, divisors: Sequence[float]) -> dict[str, Any]:
    """Make `rope_parameters` of metadata and of the `divisors` in `rope_freqs.weight`, if there are any.

    Raises ModelError for a scaling that is not supported, KeyError for a missing field.
    """
    rope_dim = values.get("rope.dimension_count") or head_dim
    if not isinstance(rope_dim, int) or rope_dim > head_dim or rope_dim % 2:
        raise ModelError(
            f"the GGUF file has {short(rope_dim)} in rope.dimension_count, expected an even number up to {head_dim}"
        )
    parameters = {"rope_theta": values.get("rope.freq_base", 10_000.0)}
    if rope_dim != head_dim:
        parameters["partial_rotary_factor"] = _share(rope_dim, head_dim)
    parameters |= _divided(values, divisors, rope_dim // 2) if len(divisors) else _scaled(values)
    return parameters | _temperature(values)


def read_latent_rope(values: Values, divisors: Sequence[float]) -> dict[str, Any]:
    """Make `rope_parameters` of latent attention. llama.cpp writes a tenth of mscale_all_dim, and does not scale the
    cosines: only the scale of scores depends on it. Raises ModelError for what it does not write.
    """
    if len(divisors):
        raise ModelError("the GGUF file has rope_freqs.weight, which models with latent attention have not")
    if (factor := values.get("rope.scaling.attn_factor", 1.0)) != 1.0:
        raise ModelError(
            f"the GGUF file has {short(factor)} in rope.scaling.attn_factor, expected 1.0 with latent attention"
        )
    parameters = {"rope_theta": values.get("rope.freq_base", 10_000.0), **_scaled(values), **_temperature(values)}
    if parameters["rope_type"] != "yarn":
        return parameters
    all_dim = round(10 * values.get("rope.scaling.yarn_log_multiplier", 0.0), 6)
    return parameters | {"mscale": all_dim, "mscale_all_dim": all_dim, "attention_factor": 1.0}


def _share(rope_dim: int, head_dim: int) -> float:
    """Return the part of a head that rotates: head_dim times it, rounded down, is rope_dim."""
    share = rope_dim / head_dim
    return share if int(head_dim * share) == rope_dim else math.nextafter(share, 1.0)


def _divided(values: Values, divisors: Sequence[float], n_pairs: int) -> dict[str, Any]:
    """Return a divisor of each pair's frequency, as llama.cpp's converter writes RoPE of kind llama3."""
    if _kind(values) != "none":
        raise ModelError(
            f"the GGUF file has rope_freqs.weight and RoPE scaling {short(_kind(values))}; Noria supports one of them"
        )
    if len(divisors) != n_pairs or not all(math.isfinite(value) and value > 0 for value in divisors):
        raise ModelError(
            f"the GGUF file has {len(divisors)} values in rope_freqs.weight, expected {n_pairs} numbers above 0"
        )
    if all(value == 1 for value in divisors):
        return {"rope_type": "default"}
    return {"rope_type": "divisors", "divisors": list(map(float, divisors))}


def _scaled(values: Values) -> dict[str, Any]:
    kind = _kind(values)
    if kind not in _SCALINGS:
        raise ModelError(f"the GGUF file has RoPE scaling {short(kind)}; Noria supports {', '.join(_SCALINGS)}")
    return _SCALINGS[kind](values)


def _kind(values: Values) -> Any:
    """Return the scaling's kind. "linear" by a factor of 1, which some converters write, is none."""
    kind = values.get("rope.scaling.type", "linear")
    return "none" if kind == "linear" and _factor(values) in (0, 1) else kind


def _factor(values: Values) -> Any:
    return values.get("rope.scaling.factor", values.get("rope.scale_linear", 1.0))


def _none(values: Values) -> dict[str, Any]:
    return {"rope_type": "default"}


def _linear(values: Values) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": _factor(values)}


def _yarn(values: Values) -> dict[str, Any]:
    """Read YaRN. llama.cpp multiplies cos and sin by m(1) / m(`yarn_log_multiplier`), m(s) = 1 + 0.1 s ln(factor).

    A multiplier of 1 therefore cancels the scale, and 0 (or none) leaves m(1).
    """
    factor = values["rope.scaling.factor"]
    all_dim = values.get("rope.scaling.yarn_log_multiplier", 0.0)
    scale = _scale(factor, 1.0) / _scale(factor, all_dim) * values.get("rope.scaling.attn_factor", 1.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": values["rope.scaling.original_context_length"],
        "beta_fast": values.get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": values.get("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": scale,
    }


def _scale(factor: float, multiplier: float) -> float:
    return 1.0 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0


def _temperature(values: Values) -> dict[str, Any]:
    """Read the query temperature. Its length is YaRN's, which the file has even if it has no YaRN."""
    beta = values.get("attention.temperature_scale")
    if not beta:
        return {}
    original = values.get("rope.scaling.original_context_length")
    length = values.get("attention.temperature_length", original)
    if not length or (original and length != original):
        raise ModelError(
            f"the GGUF file has {short(length)} in attention.temperature_length, expected the value of "
            f"rope.scaling.original_context_length, {short(original)}"
        )
    return {"llama_4_scaling_beta": beta, "original_max_position_embeddings": length}


_SCALINGS: Mapping[str, Callable[[Values], dict[str, Any]]] = {"none": _none, "linear": _linear, "yarn": _yarn}
LONGEST_WITHOUT_YARN = 131_072
"""The longest context of the models of these architectures without YaRN: Small 3.1 and 3.2."""
WITH_YARN = ("mistral3", "mistral4", "deepseek2")
"""The architectures whose long models have YaRN."""


def wrong_conversions(name: str, metadata: Values) -> Iterator[str]:
    """Yield a line for each known fault of converters that the file of this name has.

    The first converters for `mistral3` did not write YaRN, or not its scale, which the models of 2025 and 2026 have.
    """
    if (architecture := metadata.get("general.architecture")) not in WITH_YARN:
        return
    values = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    remedy = "the file was converted wrongly; get a newer one"
    if _kind(values) == "yarn":
        if architecture == "mistral3" and "rope.scaling.yarn_log_multiplier" not in values:
            yield f"{name} has YaRN without rope.scaling.yarn_log_multiplier: {remedy}"
    elif values.get("context_length", 0) > LONGEST_WITHOUT_YARN or values.get("attention.temperature_scale"):
        yield f"{name} has a context of {values.get('context_length')} tokens without the keys of YaRN: {remedy}"
