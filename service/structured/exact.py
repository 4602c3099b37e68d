"""The numbers of JSON schemas, which llguidance reads as doubles: another number must not take the place of one.

A bound may move inward, because every answer within the closer bound is within the other. A value of `const` or
`enum` may not change. A decimal number is read exactly if its digits are at most 2^53, and it has at most 22 places.
"""

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from model.errors import quoted
from service.schema.fields import Json
from service.structured.json_schema import inner

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
MAX_EXACT, MAX_PLACES, MAX_SHORT = 2**53, 22, 16
LARGEST = 2**63 - 2**10
"""The largest double below 2^63, where llguidance's integers end."""


def exact(schema: Any) -> Any:
    """The schema with numbers that llguidance reads exactly. Raises ValueError if there are none for it."""
    if not isinstance(schema, dict):
        return schema
    changed = {key: inner(key, value, exact) for key, value in schema.items()}
    for name in ("const", "enum"):
        for number in _numbers(changed.get(name)):
            if not _is_exact(number):
                raise ValueError(f"{name} has the number {quoted(number)}, which has too many digits: use a string")
    for name in (*LOWER, *UPPER):
        if (bound := _number(changed, name)) is not None and abs(bound) > MAX_EXACT:
            changed[name] = _inward(name, bound)
    _compare(schema, changed)
    return changed


def _numbers(value: Any) -> Iterator[float]:
    if type(value) in (int, float):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _is_exact(number: float) -> bool:
    text = repr(number)
    if len(text) < MAX_SHORT and "e" not in text:
        return True  # most numbers, of which a schema may have very many
    if type(number) is float and not math.isfinite(number):
        return True  # no JSON: the grammar is refused when it is written
    if abs(number) >= MAX_EXACT and number == int(number):
        return abs(number) <= LARGEST and float(number) == number
    _, digits, exponent = Decimal(text).as_tuple()
    return int("".join(map(str, digits))) <= MAX_EXACT and int(exponent) >= -MAX_PLACES


def _inward(name: str, bound: float) -> int:
    """The nearest double that is not beyond the bound, from -LARGEST to LARGEST."""
    sign = 1 if name in UPPER else -1  # an upper bound moves down, a lower one up
    outer = max(-LARGEST, min(LARGEST, sign * int(bound)))
    if sign * int(bound) < -LARGEST:
        raise ValueError(f"{name} {quoted(bound)} is beyond {sign * -LARGEST}")
    near = float(outer)
    return sign * int(near if near <= outer else math.nextafter(near, -math.inf))


def _compare(given: Json, changed: Json) -> None:
    """Raise ValueError if moving the bounds has left no number between them."""
    for low in LOWER:
        for high in UPPER:
            first, last = _number(given, low), _number(given, high)
            if first is not None and last is not None and first <= last and changed[low] > changed[high]:
                raise ValueError(f"{low} {quoted(first)} and {high} {quoted(last)} have too many digits")


def _number(schema: Json, name: str) -> float | None:
    """The bound of a name. None without one, and for what is no number in JSON."""
    value = schema.get(name)
    return value if type(value) is int or (type(value) is float and math.isfinite(value)) else None
