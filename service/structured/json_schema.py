"""Schemas as those who write them mean them, and as llguidance takes them.

Objects have the properties that are declared, and no others; what it gets wrong is said in another way.
"""

import math
from collections.abc import Callable
from typing import Any, TypeGuard

Json = dict[str, Any]
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ONES = ("items", "additionalProperties")
JOINED = ("if", "not", "dependentSchemas", "unevaluatedProperties")
CHOOSING = ("allOf", "oneOf")
LOWER, UPPER = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
BOUNDS = ((*LOWER, UPPER, 1), (*UPPER, LOWER, -1))
LEAST_STEP = 1e-9
MAX_EXACT = 2**53
SPEAKS_OF_OTHERS = ("additionalProperties", "minProperties")


class _Joined(Exception):
    """Several schemas hold for one object."""


def closed(schema: Json) -> Json:
    """The schema, in which objects with `properties` have no others unless `additionalProperties` says so.

    As it is where schemas are joined, as with `allOf`: what one of them does not declare, another may. So with `oneOf`,
    where closing one makes room for what is two; not where a discriminator, which is then required, keeps them apart.
    Without this a model goes on with properties of its own until its tokens run out.
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
    changed = {key: _inner(key, value, _closed) for key, value in schema.items()}
    if (tag := _tag(schema)) is not None and isinstance(changed["oneOf"], list):
        changed["oneOf"] = [{"allOf": [branch], "required": [tag]} for branch in changed["oneOf"]]
    names = schema.get("properties")
    if isinstance(names, dict) and not any(key in schema for key in SPEAKS_OF_OTHERS):
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
    """The property by which the schemas of `oneOf` are told apart, as OpenAPI and pydantic declare it."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) and "oneOf" in schema else None
    return name if isinstance(name, str) else None


def _inner(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if key in MAPS and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if key in LISTS and isinstance(value, list):
        return [change(schema) for schema in value]
    return change(value) if key in ONES else value


def bounded(schema: Any) -> Any:
    """The schema with exclusive bounds that llguidance would take for inclusive replaced by the next inclusive ones.

    Those are whole numbers with the other bound less than 1 further from 0, as in "above 0, at most 0.5".
    """
    if not isinstance(schema, dict):
        return schema
    changed = {key: _inner(key, value, bounded) for key, value in schema.items()}
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


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < MAX_EXACT
