"""Changes to JSON schemas before llguidance compiles them.

Objects are closed: they have only the declared properties. The rules also change bounds that llguidance misreads,
keywords that it does not read in the way that they are written, and leave out keywords that constrain nothing.

llguidance reads numbers as doubles, and must not read another number. A bound may move inward, because every answer
within the closer bound is within the other. A value of `const` or `enum` may not change.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, TypeGuard

from model.errors import quoted
from service.schema.fields import Json
from service.structured.strings import formatted, patterned

MAPS = ("properties", "patternProperties", "$defs", "definitions")
VALUES = ("const", "enum", "default", "example", "examples")
"""Keywords whose values are no schemas. Below every other keyword there may be a schema that a `$ref` names."""
JOINED = ("if", "not", "dependentSchemas", "unevaluatedProperties")
CHOOSING = ("allOf", "oneOf")
LOWER, UPPER = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
BOUNDS = ((*LOWER, UPPER, 1), (*UPPER, LOWER, -1))
LEAST_STEP = 1e-9
MAX_EXACT = 2**53
LARGEST = 2**63 - 2**10
"""The largest double below 2^63, where llguidance's integers end."""
COUNTS_OTHERS = ("additionalProperties", "minProperties")

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""The values of `format` that are enforced. In JSON Schema any other value is a remark."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "minContains": (0,),
    "not": (False,),
}
"""Keywords that llguidance refuses -> values that constrain nothing."""
DIALECTS = "json-schema.org/"


class _Joined(Exception):
    """Several schemas apply to one object."""


def closed(schema: Json) -> Json:
    """Return the schema with `additionalProperties: false` in objects that have `properties` and do not say otherwise.

    Without it a model adds properties of its own until max_tokens. A schema that joins others (`allOf`) stays as it is,
    because one of them may declare properties that another does not. `oneOf` stays as it is, because a value could then
    match two schemas. With a discriminator `oneOf` is changed: the discriminator becomes required, and distinguishes
    the schemas.
    """
    try:
        return _closed(schema)
    except _Joined:
        return schema


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    if _joins(schema):
        raise _Joined
    changed = {key: inner(key, value, _closed) for key, value in schema.items()}
    if (tag := _tag(schema)) is not None and isinstance(changed["oneOf"], list):
        changed["oneOf"] = [{"allOf": [branch], "required": [tag]} for branch in changed["oneOf"]]
    names = schema.get("properties")
    if isinstance(names, dict) and not any(key in schema for key in COUNTS_OTHERS):
        required = schema.get("required", [])
        if isinstance(required, list) and all(name in names for name in required if isinstance(name, str)):
            changed["additionalProperties"] = False
    return changed


def _joins(schema: Json) -> bool:
    choosing = [key for key in CHOOSING if key in schema and (key == "allOf" or _tag(schema) is None)]
    several = any(not isinstance(schema[key], list) or len(schema[key]) != 1 for key in choosing)
    beside = "properties" in schema and any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref"))
    return several or beside or any(key in schema for key in JOINED)


def _tag(schema: Json) -> str | None:
    """Return the discriminator of `oneOf`, as OpenAPI and pydantic declare it."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) and "oneOf" in schema else None
    return name if isinstance(name, str) else None


def inner(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value of a keyword, with `change` made to the schemas in it."""
    if key in MAPS and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if key in VALUES or key.startswith("x-"):
        return value
    return [change(part) for part in value] if isinstance(value, list) else change(value)


def each(schema: Any, rule: Callable[[Json], Json]) -> Any:
    """Return the schema with a rule applied to each schema in it, then to itself."""
    if not isinstance(schema, dict):
        return schema
    within = partial(each, rule=rule)
    return rule({key: inner(key, value, within) for key, value in schema.items()})


def bounded(schema: Json) -> Json:
    """Return the schema with inclusive bounds in place of exclusive ones that llguidance would read as inclusive.

    It misreads whole numbers whose other bound is less than 1 further from 0, as in "above 0, at most 0.5".
    """
    changed = dict(schema)
    for name, inclusive, others, sign in BOUNDS:
        bound = changed.get(name)
        if not _is_number(bound) or bound != int(bound) or sign * bound < 0:
            continue
        inside = bound + sign * max(LEAST_STEP, math.ulp(bound))
        given = changed.get(inclusive, inside)
        near = any(_is_number(changed.get(other)) and abs(changed[other] - bound) < 1 for other in others)
        if near and _is_number(given):
            changed[inclusive] = sign * max(sign * inside, sign * given)
            del changed[name]
    return changed


def readable(schema: Json) -> Json:
    """Return the schema without keywords that constrain nothing, and with whole numbers where llguidance needs them.

    It leaves out formats that are not known, and `$schema` of a dialect that is not known.
    """
    changed = {key: value for key, value in schema.items() if not _says_nothing(key, value)}
    for key in COUNTS:
        if isinstance(number := changed.get(key), float) and number.is_integer():
            changed[key] = int(number)
    return changed


def _says_nothing(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    if key == "$schema":
        return isinstance(value, str) and DIALECTS not in value
    return any(type(value) is type(other) and value == other for other in NEUTRAL.get(key, ()))


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < MAX_EXACT


def exact(schema: Json) -> Json:
    """Return the schema with numbers that llguidance reads exactly. Raises ValueError if there are none for it."""
    changed = dict(schema)
    for name in ("const", "enum"):
        for number in _numbers(changed.get(name)):
            if not _is_exact(number):
                raise ValueError(f"{name} has the number {quoted(number)}, which has too many digits: use a string")
    for name in (*LOWER, *UPPER):
        if (bound := _number(changed, name)) is not None and abs(bound) > MAX_EXACT:
            changed[name] = _inward(name, bound)
    if changed.get("type") == "integer" and (step := _number(changed, "multipleOf")):
        changed["multipleOf"] = Fraction(repr(step)).numerator  # the whole ones among the multiples of a fraction
    for low, high in product(LOWER, UPPER):
        first, last = _number(schema, low), _number(schema, high)
        if first is not None and last is not None and first <= last and changed[low] > changed[high]:
            raise ValueError(f"{low} {quoted(first)} and {high} {quoted(last)} have too many digits")
    return changed


def _numbers(value: Any) -> Iterator[float]:
    if type(value) in (int, float):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _is_exact(number: float) -> bool:
    """Return whether a double holds the number: a whole one, or one of at most 15 digits and 22 places."""
    if type(number) is float and not math.isfinite(number):
        return True  # no JSON: the grammar is refused when it is written
    if number == int(number):
        return abs(number) <= LARGEST and float(number) == number
    return float(f"{number:.15g}") == number == float(f"{number:.22f}")


def _inward(name: str, bound: float) -> int:
    """Return the nearest double that is not beyond the bound, from -LARGEST to LARGEST."""
    sign = 1 if name in UPPER else -1  # an upper bound moves down, a lower one up
    outer = max(-LARGEST, min(LARGEST, sign * int(bound)))
    if sign * int(bound) < -LARGEST:
        raise ValueError(f"{name} {quoted(bound)} is beyond {sign * -LARGEST}")
    near = float(outer)
    return sign * int(near if near <= outer else math.nextafter(near, -math.inf))


def _number(schema: Json, name: str) -> float | None:
    """Return the bound of a name; None without one, and for what is no number in JSON."""
    value = schema.get(name)
    return value if type(value) is int or (type(value) is float and math.isfinite(value)) else None


def countable(schema: Json) -> Json:
    """Return the schema. Raises ValueError where one name could count twice: the grammar does not know earlier ones."""
    least, names = schema.get("minProperties"), schema.get("required", [])
    others = schema.get("patternProperties") or schema.get("additionalProperties") is not False
    if _is_number(least) and isinstance(names, list) and others and least > len(set(map(str, names))) + 1:
        raise ValueError(f"minProperties {least} may be at most 1 more than the names in required with open names")
    return schema


RULES = (readable, exact, bounded, countable, patterned)
"""Each changes one schema, without those in it."""


def enforceable(schema: Json) -> Any:
    """Return the schema as llguidance reads it right. Raises ValueError, naming the keyword, if there is none."""
    changed = schema
    for rule in RULES:
        changed = each(changed, rule)
    return each(closed(changed), formatted)


def mixes_names(schema: Json) -> bool:
    """Return whether an object has two kinds of names: declared ones, those of patterns, and any others."""
    mixed = []

    def note(part: Json) -> Json:
        declared = part.get("properties") or part.get("required")
        others = part.get("additionalProperties") is not False
        mixed.append(sum(map(bool, (declared, part.get("patternProperties"), others))) > 1)
        return part

    each(schema, note)
    return any(mixed)
