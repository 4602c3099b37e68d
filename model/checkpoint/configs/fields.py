"""Checks of the fields of a configuration file, whatever its format."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.checkpoint.files import DTYPES, ShardFile, find_shards, has_shards, read_shard
from model.checkpoint.names import is_encoder, is_head
from model.errors import ModelError, short
from model.ranges import is_number

MAX_LAYERS = 10_000


def number(raw: Mapping[str, Any], key: str, file: str) -> Any:
    """Return the finite number in a field. Raises ModelError, which names the field and `file`, for any other value."""
    value = raw.get(key)
    if not is_number(value):
        raise ModelError(f"{file} must have a finite number in {key}, it has {short(value)}")
    return value


def size(raw: Mapping[str, Any], key: str, file: str) -> int:
    """Return the whole number of at least 1 in a field. Raises ModelError, which names the field and `file`."""
    value = raw.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ModelError(f"{file} must have a whole number of at least 1 in {key}, it has {short(value)}")


def optional_size(raw: Mapping[str, Any], key: str, file: str, default: int | None = None) -> int | None:
    """Return `size`; None for null, `default` for a field that is not there."""
    if raw.get(key) is None:
        return None if key in raw else default
    return size(raw, key, file)


def positive(raw: Mapping[str, Any], key: str, file: str, default: float | None = None) -> float:
    """Return the finite number above 0 in a field; `default`, if any, for a field that is null or not there."""
    if raw.get(key) is None and default is not None:
        return default
    value: float = number(raw, key, file)
    if value <= 0:
        raise ModelError(f"{file} must have a number above 0 in {key}, it has {short(value)}")
    return value


def number_of_layers(raw: Mapping[str, Any], key: str, file: str) -> int:
    """Return the number of layers, checked before a list with an entry for each is made."""
    n_layers = size(raw, key, file)
    if n_layers > MAX_LAYERS:
        raise ModelError(f"the checkpoint has {n_layers} layers; Noria supports {MAX_LAYERS}")
    return n_layers


def repeated(window: Any, n_layers: int, where: str) -> tuple[int | None, ...]:
    """Return a window in every layer, or a list of windows that repeats: [4, None] on 3 layers is (4, None, 4)."""
    pattern = window if isinstance(window, list) else [window]
    if not pattern:
        raise ModelError(f"{where} is an empty list; it must be a window, null, or a list of them")
    return tuple(pattern[layer % len(pattern)] for layer in range(n_layers))


def check_keys(raw: object, known: Collection[str], where: str) -> Mapping[str, Any]:
    """Return `raw`, an object whose keys are all known. Raises ModelError for any other: none is ignored in silence."""
    if not isinstance(raw, dict):
        raise ModelError(f"{where} must be an object, it is {short(raw)}")
    if unknown := sorted(raw.keys() - set(known)):
        raise ModelError(
            f"{where} has {unknown[0]!r} ({short(raw[unknown[0]])}), which Noria does not know; it knows "
            f"{', '.join(sorted(known))}; remove the key if it means nothing for serving"
        )
    return raw


def check_values(raw: Mapping[str, Any], only: Mapping[str, Any], where: str) -> None:
    """Raise ModelError for a field whose value is not the only one that describes what Noria does."""
    for key, value in only.items():
        if raw.get(key) != value:
            raise ModelError(f"{where} has {key} {short(raw.get(key))}; Noria supports {value!r}")


def present_shards(directory: Path) -> tuple[ShardFile, ...]:
    """Read the headers of a directory's safetensors files; none for a directory without these files.

    Raises ModelError for files that are not all there, or damaged.
    """
    return tuple(map(read_shard, find_shards(directory))) if has_shards(directory) else ()


def has_encoder(shards: Sequence[ShardFile], declared: Any) -> bool:
    """Return whether the files of weights have an encoder; without files, whether one is `declared`.

    Some conversions keep only the text of a model, with its whole configuration.
    """
    if not shards:
        return declared is not None
    return any(is_encoder(name) for shard in shards for name in shard.dtypes)


def tied_head(shards: Sequence[ShardFile], declared: bool) -> bool:
    """Return whether the output head is the embeddings: exactly if no file has it; without files, as `declared`."""
    if not shards:
        return declared
    return not any(is_head(name) for shard in shards for name in shard.dtypes)


def dtype_of(declared: str | None, shards: Sequence[ShardFile]) -> str:
    """Return the declared dtype, else that of the first weight.

    A directory without weights is taken for bfloat16, in which all of these families are published.
    """
    if declared is None:
        first = _first_dtype(shards[0]) if shards else "BF16"
        declared = DTYPES.get(first, first)
    dtype = declared.removeprefix("torch.")
    if dtype not in DTYPES.values():
        raise ModelError(f"the checkpoint's dtype is {short(dtype)}; Noria supports {', '.join(DTYPES.values())}")
    return dtype


def _first_dtype(shard: ShardFile) -> str:
    """Return the dtype of a norm if there is one: the scales of quantized weights are not in the model's format."""
    norms = [dtype for name, dtype in shard.dtypes.items() if dtype in DTYPES and name.endswith("norm.weight")]
    return next(iter([*norms, *shard.dtypes.values()]), "none")
