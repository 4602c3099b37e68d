"""The declarations of API keys: plain ones, and the entries of a key file. Every mistake in them is an OptionError."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from model.errors import OptionError
from service.model_settings import ReasoningFormat, read_text

PRIORITIES = (-10, 10)
"""The lowest and the highest number that any request may send as its priority."""
LIMITS = {
    "requests_per_minute": (1, None),
    "tokens_per_minute": (1, None),
    "max_concurrent": (1, None),
    "stored_bytes": (1, None),
    "stored_responses": (1, None),
    "priority": (PRIORITIES[0], 0),
}
"""Fields of an entry that are whole numbers, with the lowest and the highest one."""
FLAGS = ("end", "loads_adapters", "loads_models", "sees_all")
OTHERS = (*FLAGS, "models", "reasoning_format")
"""Fields that an entry may leave out, and that are no numbers."""
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One API key as it is declared. `digest` is the SHA-256 hash of the key.

    A limit of None is no limit. `stored_bytes` and `stored_responses` limit what the store has of the key. `priority`
    is the lowest number that its requests may send. With `loads_adapters` they may load and unload LoRA adapters, with
    `loads_models` models. They may use the models with one of the names `models`; None: all. `reasoning_format` is for
    requests that name none. With `sees_all` they may list and cancel the requests of all keys. `end`: the key has
    ended, and so do its requests.
    """

    name: str
    digest: bytes
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    priority: int = 0
    loads_adapters: bool = False
    loads_models: bool = False
    sees_all: bool = False
    end: bool = False
    models: frozenset[str] | None = None
    reasoning_format: str | None = None
    stored_bytes: int | None = None
    stored_responses: int | None = None

    @property
    def identity(self) -> str:
        """Return the digest as text. A name may be a place in the file, which another key may get."""
        return self.digest.hex()


def read_entries(keys: Iterable[str], path: Path | None) -> list[KeyEntry]:
    """Read the entries of plain keys and of a key file: TOML or JSON by its name, else one plain key a line.

    Raises OptionError.
    """
    named: list[KeyEntry] = []
    plain = list(keys)
    if path is not None:
        if path.suffix in (".toml", ".json"):
            named = list(_entries(path))
        else:
            plain += _lines(path)
    unnamed = enumerate(dict.fromkeys(map(_hashed, plain)), start=1)
    return _distinct(
        [
            *(KeyEntry(f"key-{number}", digest, loads_adapters=True, loads_models=True) for number, digest in unnamed),
            *named,
        ],
        path,
    )


def _hashed(key: str) -> bytes:
    return sha256(key.encode()).digest()


def _lines(path: Path) -> list[str]:
    keys = [line.strip() for line in read_text("--api-key-file", path).splitlines() if line.strip()]
    if not keys:
        raise OptionError(f"--api-key-file {path}: the file has no key; write one per line")
    return keys


def _entries(path: Path) -> Iterator[KeyEntry]:
    """Yield the entries under `keys`. No other field may stand beside it."""
    text = read_text("--api-key-file", path)
    try:
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        reason = str(error).replace("\n", " ")
        raise OptionError(f"--api-key-file {path}: not valid {path.suffix[1:].upper()}: {reason}") from error
    entries = table.get("keys") if isinstance(table, dict) and table.keys() <= {"keys"} else None
    if not isinstance(entries, list) or not entries:
        raise OptionError(f"--api-key-file {path}: expected a list of entries named keys, and nothing beside it")
    for number, fields in enumerate(entries, start=1):
        try:
            yield _entry(fields)
        except ValueError as error:
            raise OptionError(f"--api-key-file {path}: entry {number}: {error}") from error


def _entry(fields: Any) -> KeyEntry:
    """Check one entry. Raises ValueError, with the name of the field."""
    if not isinstance(fields, dict):
        raise ValueError(f"expected fields, got {type(fields).__name__}")  # it may be a key
    name = fields.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}")
    if unknown := fields.keys() - {"name", "key", "sha256", *OTHERS, *LIMITS}:
        raise ValueError(f"{name}: unknown field {min(unknown)!r}")
    try:
        limits: dict[str, Any] = {field: _whole(field, fields[field]) for field in LIMITS if field in fields}
        flags: dict[str, Any] = {field: _flag(fields, field) for field in FLAGS}
        others: dict[str, Any] = {"models": _models(fields), "reasoning_format": _format(fields)}
        return KeyEntry(name, _digest(fields), **limits, **flags, **others)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _digest(fields: dict[str, Any]) -> bytes:
    if ("key" in fields) == ("sha256" in fields):
        raise ValueError("give either sha256 or key")
    if "key" in fields:
        if not isinstance(fields["key"], str) or not fields["key"].strip():
            raise ValueError("key must be text that is not empty")
        return _hashed(fields["key"].strip())
    if not isinstance(fields["sha256"], str) or not DIGEST.fullmatch(fields["sha256"]):
        raise ValueError("sha256 must be 64 hexadecimal digits")
    return bytes.fromhex(fields["sha256"])


def _flag(fields: dict[str, Any], field: str) -> bool:
    value = fields.get(field, False)
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false, got {value!r}")
    return value


def _models(fields: dict[str, Any]) -> frozenset[str] | None:
    names = fields.get("models")
    if names is None:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"models must be a list of names, got {names!r}")
    return frozenset(names)


def _format(fields: dict[str, Any]) -> str | None:
    value, known = fields.get("reasoning_format"), get_args(ReasoningFormat)
    if value not in (None, *known):
        raise ValueError(f"reasoning_format must be one of {', '.join(known)}, got {value!r}")
    return value


def _whole(field: str, value: Any) -> int:
    least, most = LIMITS[field]
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} must be a whole number {limits}, got {value!r}")
    return value


def _distinct(entries: list[KeyEntry], path: Path | None) -> list[KeyEntry]:
    """Return the same entries. Raises OptionError where two have one name or one key."""
    names: set[str] = set()
    owners: dict[bytes, str] = {}
    for entry in entries:
        if entry.name in names:
            raise OptionError(f"--api-key-file {path}: {entry.name}: name is that of another key")
        if entry.digest in owners:
            raise OptionError(f"--api-key-file {path}: {entry.name}: sha256 is that of {owners[entry.digest]}")
        names.add(entry.name)
        owners[entry.digest] = entry.name
    return entries
