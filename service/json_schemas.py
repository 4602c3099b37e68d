"""Schemas as those who write them mean them: objects have the properties that are declared, and no others."""

from typing import Any

Json = dict[str, Any]
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ONES = ("items", "additionalProperties")
JOINED = ("if", "not", "dependentSchemas", "unevaluatedProperties")
SPEAKS_OF_OTHERS = ("additionalProperties", "minProperties")


class _Joined(Exception):
    """Several schemas hold for one object."""


def closed(schema: Json) -> Json:
    """The schema, in which objects with `properties` have no others unless `additionalProperties` says so.

    As it is where schemas are joined, as with `allOf`: what one of them does not declare, another may.
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
    changed = {key: _inner(key, value) for key, value in schema.items()}
    names = schema.get("properties")
    if isinstance(names, dict) and not any(key in schema for key in SPEAKS_OF_OTHERS):
        required = schema.get("required", [])
        if isinstance(required, list) and all(name in names for name in required if isinstance(name, str)):
            changed["additionalProperties"] = False
    return changed


def _joins(schema: Json) -> bool:
    several = "allOf" in schema and not (isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1)
    beside = "properties" in schema and any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref"))
    return several or beside or any(key in schema for key in JOINED)


def _inner(key: str, value: Any) -> Any:
    if key in MAPS and isinstance(value, dict):
        return {name: _closed(schema) for name, schema in value.items()}
    if key in LISTS and isinstance(value, list):
        return [_closed(schema) for schema in value]
    return _closed(value) if key in ONES else value
