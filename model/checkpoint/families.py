"""Model families, one row each, and ModelConfig from `config.json` or `params.json`. No torch.

All else about a family is read from its checkpoint: windows, RoPE, head sizes and experts are never assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checkpoint.files import DTYPES, find_shards, layout, read_json, read_shard
from model.checkpoint.rope_config import read_rope
from model.config import ModelConfig
from model.errors import ModelError, one_line, short

MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of a `model_type` for fields that its `config.json` does not set, as in transformers."""

    name: str
    rope_theta: float = 10_000.0
    sliding_window: int | None = None
    sparse: bool = False


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("mistral", sliding_window=4096),
        Family("ministral", sliding_window=4096),
        Family("mixtral", rope_theta=1_000_000.0, sparse=True),
        Family("llama"),
    )
}

NATIVE_MAX_POSITION = 32_768
"""Context of a native checkpoint whose params.json has no max_seq_len, as in the HF versions of those models."""

_NATIVE_REFUSED = ("vision_encoder", "multimodal", "lora", "yarn", "llama_4_scaling", "use_biases")


def read_config(directory: Path, *, max_model_len: int | None = None) -> ModelConfig:
    """ModelConfig from `config.json` or `params.json`.

    `max_model_len` is the longest sequence to serve. Dynamic RoPE scaling is computed for that length, and extends
    `max_position` to it, up to `factor` times the trained context.
    Raises ModelError, which names the field, its value and what is supported.
    """
    native = layout(directory) == "native"
    try:
        return _native_config(directory) if native else _hf_config(directory, max_model_len)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        name = "params.json" if native else "config.json"
        raise ModelError(f"{name} has a value that no model can have: {one_line(error)}") from error


def _hf_config(directory: Path, max_model_len: int | None) -> ModelConfig:
    raw = read_json(directory / "config.json")
    family = _hf_family(raw)
    n_heads, dim, n_layers = (_number(raw, key) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    _check_layers(n_layers)
    head_dim = raw.get("head_dim") or dim // n_heads
    rope = read_rope(
        raw,
        default_theta=family.rope_theta,
        head_dim=head_dim,
        max_position=_number(raw, "max_position_embeddings"),
        max_model_len=max_model_len,
    )
    return ModelConfig(
        family=family.name,
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=raw.get("num_key_value_heads") or n_heads,
        head_dim=head_dim,
        hidden_dim=_number(raw, "intermediate_size"),
        vocab_size=_number(raw, "vocab_size"),
        norm_eps=_number(raw, "rms_norm_eps"),
        rope_theta=rope.theta,
        rope_fraction=rope.fraction,
        rope_scaling=rope.scaling,
        max_position=rope.max_position,
        windows=_hf_windows(raw, family, n_layers),
        n_experts=_number(raw, "num_local_experts") if family.sparse else 0,
        n_experts_per_token=_number(raw, "num_experts_per_tok") if family.sparse else 0,
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        dtype=_dtype(raw.get("dtype") or raw.get("torch_dtype"), directory),
    )


def _hf_family(raw: Mapping[str, Any]) -> Family:
    kind = raw.get("model_type", "")
    if kind not in FAMILIES and raw.get("auto_map"):
        raise ModelError(
            f"config.json has model_type {kind!r} with code of its own (auto_map), which Noria never runs; "
            f"Noria supports {', '.join(FAMILIES)}"
        )
    if kind not in FAMILIES:
        raise ModelError(f"config.json has model_type {kind!r}; Noria supports {', '.join(FAMILIES)}")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"config.json has hidden_act {raw['hidden_act']!r}; Noria supports silu")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise ModelError(f"config.json has {key} true; Noria supports models without it")
    return FAMILIES[kind]


def _hf_windows(raw: Mapping[str, Any], family: Family, n_layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window", family.sliding_window)
    kinds = raw.get("layer_types")
    if not kinds:
        return (window,) * n_layers
    windows = {"sliding_attention": window, "full_attention": None}
    for kind in kinds:
        if kind not in windows:
            raise ModelError(f"config.json has {kind!r} in layer_types; Noria supports {', '.join(windows)}")
    return tuple(windows[kind] for kind in kinds)


def _native_config(directory: Path) -> ModelConfig:
    raw = read_json(directory / "params.json")
    for key in _NATIVE_REFUSED:
        if raw.get(key):
            raise ModelError(f"params.json has {key!r}; Noria does not support it")
    if raw.get("model_type", "transformer") != "transformer":
        raise ModelError(f"params.json has model_type {raw['model_type']!r}; Noria supports transformer")
    moe = raw.get("moe") or {}
    dim, n_layers, n_heads = (_number(raw, key, "params.json") for key in ("dim", "n_layers", "n_heads"))
    _check_layers(n_layers)
    windows = _native_windows(raw.get("sliding_window"), n_layers)
    return ModelConfig(
        family="mixtral" if moe else "mistral",
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=raw.get("n_kv_heads") or n_heads,
        head_dim=raw.get("head_dim") or dim // n_heads,
        hidden_dim=_number(raw, "hidden_dim", "params.json"),
        vocab_size=_number(raw, "vocab_size", "params.json"),
        norm_eps=_number(raw, "norm_eps", "params.json"),
        rope_theta=raw.get("rope_theta") or (10_000.0 if any(windows) else 1_000_000.0),
        rope_fraction=raw.get("rope_fraction", 1.0),
        max_position=raw.get("max_seq_len") or raw.get("max_position_embeddings") or NATIVE_MAX_POSITION,
        windows=windows,
        n_experts=moe.get("num_experts", 0),
        n_experts_per_token=moe.get("num_experts_per_tok", 0),
        tied_head=bool(raw.get("tied_embeddings", False)),
        dtype=_dtype(raw.get("dtype"), directory),
    )


def _native_windows(value: int | list[int | None] | None, n_layers: int) -> tuple[int | None, ...]:
    """One window for all layers, or a list that repeats: [4, None] on 3 layers is (4, None, 4)."""
    pattern = value if isinstance(value, list) and value else [value]
    return tuple(pattern[layer % len(pattern)] for layer in range(n_layers))  # type: ignore[misc]


def _number(raw: Mapping[str, Any], key: str, file: str = "config.json") -> Any:
    value = raw.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"{file} must have a number in {key}, it has {short(value)}")
    return value


def _check_layers(n_layers: int) -> None:
    """A list with an entry for each layer is made before the configuration checks its values."""
    if n_layers > MAX_LAYERS:
        raise ModelError(f"the checkpoint has {n_layers} layers; Noria supports {MAX_LAYERS}")


def _dtype(declared: str | None, directory: Path) -> str:
    """The declared dtype, else that of the first weight.

    A directory without weights is taken for bfloat16, in which all of these families are published.
    """
    if declared is None:
        try:
            shards = find_shards(directory)
        except ModelError:
            return "bfloat16"
        shard = read_shard(shards[0])  # scales of quantized weights are not in the model's format
        floats = [dtype for name, dtype in shard.dtypes.items() if dtype in DTYPES and name.endswith("norm.weight")]
        first = next(iter([*floats, *shard.dtypes.values()]), "none")
        declared = DTYPES.get(first, first)
    dtype = declared.removeprefix("torch.")
    if dtype not in DTYPES.values():
        raise ModelError(f"the checkpoint's dtype is {dtype!r}; Noria supports {', '.join(DTYPES.values())}")
    return dtype
