"""Changes to JSON schemas before llguidance compiles them.

Objects are closed: they have only the declared properties. Bounds that llguidance misreads are written differently.
So is what is valid JSON Schema and asks nothing of the answer, or asks it in a way that llguidance does not read.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from service.schema.fields import Json

MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ONES = ("items", "additionalProperties")
JOINED = ("if", "not", "dependentSchemas", "unevaluatedProperties")
CHOOSING = ("allOf", "oneOf")
LOWER, UPPER = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
BOUNDS = ((*LOWER, UPPER, 1), (*UPPER, LOWER, -1))
LEAST_STEP = 1e-9
MAX_EXACT = 2**53
COUNTS_OTHERS = ("additionalProperties", "minProperties")

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""The values of `format` that are enforced. JSON Schema makes any other one a remark."""
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
"""Keywords that llguidance refuses -> values that ask nothing."""
DIALECTS = "json-schema.org/"


class _Joined(Exception):
    """Several schemas apply to one object."""


def closed(schema: Json) -> Json:
    """The schema with `additionalProperties: false` in objects that have `properties` and do not say otherwise.

    Without it a model adds properties of its own until max_tokens. A schema that joins others (`allOf`) stays as it is,
    because one of them may declare properties that another does not. `oneOf` stays as it is too, because a value could
    then match two schemas. With a discriminator it is changed: the discriminator becomes required, and distinguishes
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
    """The discriminator of `oneOf`, as OpenAPI and pydantic declare it."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) and "oneOf" in schema else None
    return name if isinstance(name, str) else None


def inner(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of a keyword, with `change` made to the schemas in it."""
    if key in MAPS and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if key in LISTS and isinstance(value, list):
        return [change(schema) for schema in value]
    return change(value) if key in ONES else value


def bounded(schema: Any) -> Any:
    """The schema with inclusive bounds in place of exclusive ones that llguidance would read as inclusive.

    It misreads whole numbers whose other bound is less than 1 further from 0, as in "above 0, at most 0.5".
    """
    if not isinstance(schema, dict):
        return schema
    changed = {key: inner(key, value, bounded) for key, value in schema.items()}
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


def readable(schema: Any) -> Any:
    """The schema without keywords that ask nothing of the answer, and with whole numbers where llguidance needs them.

    It leaves out formats that are not known, and `$schema` of a dialect that is not known.
    """
    if not isinstance(schema, dict):
        return schema
    changed = {key: inner(key, value, readable) for key, value in schema.items() if not _says_nothing(key, value)}
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
