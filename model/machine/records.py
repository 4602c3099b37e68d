"""Records in JSON: dataclasses and named tuples as lists of their fields, in the order of declaration. No torch.

JSON writes a named tuple as such a list anyway. The functions that read a record are made from its type hints.
"""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]


def row(record: Any) -> list[Any]:
    """Return the fields of a dataclass's instance."""
    return [getattr(record, name) for name in _names(record.__class__)]


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


to_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), default=row).encode
"""A value with records in it as JSON text."""


def record(kind: type) -> Reader:
    """Return the function that makes a record of this type from its parsed list, which it may change.

    Fields at the end may be missing if they have a default. Raises TypeError for a type that JSON cannot hold.
    """
    readers = [(place, reader) for place, hint in enumerate(get_type_hints(kind).values()) if (reader := _reader(hint))]

    def read(values: list[Any]) -> Any:
        for place, reader in readers:
            if place >= len(values):
                break
            values[place] = reader(values[place])
        return kind(*values)

    return read


def _reader(hint: Any) -> Reader | None:
    """Return the function that makes a value of this type from parsed JSON; None if parsed JSON is such a value."""
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return record(hint)
    readers = list(filter(None, map(_reader, get_args(hint))))
    if readers and len(get_args(hint)) == 2 and NoneType in get_args(hint):
        return partial(_optional, readers[0])
    if readers and (get_origin(hint) is not tuple or get_args(hint)[1:] != (...,)):
        raise TypeError(f"a message may not hold a {hint}")
    if get_origin(hint) is not tuple:
        return None
    return partial(_each, readers[0]) if readers else tuple


def _optional(reader: Reader, item: Any) -> Any:
    return None if item is None else reader(item)


def _each(reader: Reader, items: list[Any]) -> tuple[Any, ...]:
    return tuple(map(reader, items))
