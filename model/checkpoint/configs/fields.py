"""Checks of the fields of a configuration file, whatever its format."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.checkpoint.files import DTYPES, ShardFile, find_shards, has_shards, read_shard
from model.checkpoint.names import is_encoder, is_head
from model.errors import ModelError, short
from model.ranges import is_number

MAX_LAYERS = 10_000
_COMPUTING = (
    *("attention", "attn", "rope", "rotary", "expert", "moe", "scale", "scaling", "softcap", "softmax", "logit"),
    *("norm", "bias", "hidden_act", "window", "layer_types", "ssm"),
)
"""Words in keys that may change the computation."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an object in a file by Hugging Face's names, and the file's `own` names of some of them.

    Raises ModelError, which names the file, the field as the file does, and its value.
    """

    values: Mapping[str, Any]
    file: str
    own: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def name(self, key: str) -> str:
        """Return the file's name of a field."""
        return self.own.get(key, key)

    def number(self, key: str) -> Any:
        """Return the finite number in a field."""
        value = self.get(key)
        if not is_number(value):
            raise self.must("have a finite number", key)
        return value

    def size(self, key: str) -> int:
        """Return the whole number of at least 1 in a field."""
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise self.must("have a whole number of at least 1", key)

    def optional_size(self, key: str, default: int | None = None) -> int | None:
        """Return `size`; None for null, `default` for a field that is not there."""
        if self.get(key) is None:
            return None if key in self else default
        return self.size(key)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return the finite number above 0 in a field; `default`, if any, for a field that is null or not there."""
        if self.get(key) is None and default is not None:
            return default
        value: float = self.number(key)
        if value <= 0:
            raise self.must("have a number above 0", key)
        return value

    def n_layers(self, key: str) -> int:
        """Return the number of layers, checked before a list with an entry for each is made."""
        n_layers = self.size(key)
        if n_layers > MAX_LAYERS:
            raise ModelError(f"the checkpoint has {n_layers} layers; Noria supports {MAX_LAYERS}")
        return n_layers

    def flag(self, key: str) -> bool:
        """Return the truth value in a field."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise ModelError(f"{self.file} has {self.name(key)} {short(value)}; it must be true or false")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """Return the object in a field; an empty one for a field that is null or not there."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.must("have an object or null", key)
        return value or {}

    def check(self, only: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse a field with another value than those that describe what Noria does."""
        for key, values in only.items():
            if key in self and self[key] not in values:
                raise ModelError(f"{self.file} has {self.name(key)} {short(self[key])}; Noria supports {values[0]!r}")

    def must(self, what: str, key: str) -> ModelError:
        """Return the error of a field that has another value than it must have."""
        return ModelError(f"{self.file} must {what} in {self.name(key)}, it has {short(self.get(key))}")


def check_keys(raw: object, known: Collection[str], where: str) -> Fields:
    """Return `raw`, an object whose keys are all known. Raises ModelError for any other: none is ignored in silence."""
    if not isinstance(raw, dict):
        raise ModelError(f"{where} must be an object, it is {short(raw)}")
    if unknown := sorted(raw.keys() - set(known)):
        raise ModelError(
            f"{where} has {unknown[0]!r} ({short(raw[unknown[0]])}), which Noria does not know; it knows "
            f"{', '.join(sorted(known))}; remove the key if it means nothing for serving"
        )
    return Fields(raw, where)


def unknown_keys(keys: Iterable[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the keys that are not known: those that may change the computation, and the others."""
    unknown = sorted(set(keys) - set(known))
    computing = [key for key in unknown if any(word in key for word in _COMPUTING)]
    return computing, [key for key in unknown if key not in computing]


def repeated(window: Any, n_layers: int, where: str) -> tuple[int | None, ...]:
    """Return a window in every layer, or a list of windows that repeats: [4, None] on 3 layers is (4, None, 4)."""
    pattern = window if isinstance(window, list) else [window]
    if not pattern:
        raise ModelError(f"{where} is an empty list; it must be a window, null, or a list of them")
    return tuple(pattern[layer % len(pattern)] for layer in range(n_layers))


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


def dtype_of(declared: Any, shards: Sequence[ShardFile]) -> str:
    """Return the declared dtype, else that of the first weight.

    A directory without weights is taken for bfloat16, in which all of these families are published.
    """
    if declared is None:
        first = _first_dtype(shards[0]) if shards else "BF16"
        declared = DTYPES.get(first, first)
    dtype: str = declared.removeprefix("torch.") if isinstance(declared, str) else declared
    if dtype not in DTYPES.values():
        raise ModelError(f"the checkpoint's dtype is {short(dtype)}; Noria supports {', '.join(DTYPES.values())}")
    return dtype


def _first_dtype(shard: ShardFile) -> str:
    """Return the dtype of a norm if there is one: the scales of quantized weights are not in the model's format."""
    norms = [dtype for name, dtype in shard.dtypes.items() if dtype in DTYPES and name.endswith("norm.weight")]
    return next(iter([*norms, *shard.dtypes.values()]), "none")
