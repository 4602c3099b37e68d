"""Checks of the fields of a configuration file, whatever its format."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.checkpoint.files import DTYPES, Shard, find_shards, read_shard
from model.checkpoint.names import is_head
from model.errors import ModelError, short

MAX_LAYERS = 10_000


def number(raw: Mapping[str, Any], key: str, file: str) -> Any:
    """The number in a field. Raises ModelError, which names the field and `file`, for any other value."""
    value = raw.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"{file} must have a number in {key}, it has {short(value)}")
    return value


def number_of_layers(raw: Mapping[str, Any], key: str, file: str) -> Any:
    """The number of layers, checked early: a list with an entry for each is made before ModelConfig checks values."""
    n_layers = number(raw, key, file)
    if n_layers > MAX_LAYERS:
        raise ModelError(f"the checkpoint has {n_layers} layers; Noria supports {MAX_LAYERS}")
    return n_layers


def repeated(pattern: Sequence[int | None], n_layers: int) -> tuple[int | None, ...]:
    """A list of windows that repeats over the layers: [4, None] on 3 layers is (4, None, 4)."""
    return tuple(pattern[layer % len(pattern)] for layer in range(n_layers))


def check_keys(raw: object, known: Collection[str], where: str) -> Mapping[str, Any]:
    """`raw`, an object whose keys are all known. Raises ModelError for any other: none is ignored in silence."""
    if not isinstance(raw, dict):
        raise ModelError(f"{where} must be an object, it is {short(raw)}")
    if unknown := sorted(raw.keys() - set(known)):
        raise ModelError(
            f"{where} has {unknown[0]!r} ({short(raw[unknown[0]])}), which Noria does not know; it knows "
            f"{', '.join(sorted(known))}; remove the key if it means nothing for serving"
        )
    return raw


def present_shards(directory: Path) -> tuple[Shard, ...]:
    """The headers of a directory's safetensors files; nothing if they are not all there, or damaged."""
    try:
        return tuple(read_shard(path) for path in find_shards(directory))
    except ModelError:
        return ()


def tied_head(shards: Sequence[Shard], declared: bool) -> bool:
    """Whether the output head is the embeddings: exactly if no file has it. Without files it is what is `declared`."""
    if not shards:
        return declared
    return not any(is_head(name) for shard in shards for name in shard.dtypes)


def dtype_of(declared: str | None, shards: Sequence[Shard]) -> str:
    """The declared dtype, else that of the first weight.

    A directory without weights is taken for bfloat16, in which all of these families are published.
    """
    if declared is None:
        first = _first_dtype(shards[0]) if shards else "BF16"
        declared = DTYPES.get(first, first)
    dtype = declared.removeprefix("torch.")
    if dtype not in DTYPES.values():
        raise ModelError(f"the checkpoint's dtype is {dtype!r}; Noria supports {', '.join(DTYPES.values())}")
    return dtype


def _first_dtype(shard: Shard) -> str:
    """That of a norm if there is one: the scales of quantized weights are not in the model's format."""
    norms = [dtype for name, dtype in shard.dtypes.items() if dtype in DTYPES and name.endswith("norm.weight")]
    return next(iter([*norms, *shard.dtypes.values()]), "none")
