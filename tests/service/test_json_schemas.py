"""Objects with declared properties have no others, unless their schema speaks of others or is joined with one."""

from typing import Any

import jsonschema
import pytest

from service.json_schemas import closed

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


def takes(schema: Any, value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "declared", "more"),
    [
        (A, {"a": 1}, {"a": 1, "c": 1}),
        ({"type": "object", "properties": {}}, {}, {"c": 1}),
        ({"properties": {"x": A}}, {"x": {"a": 1}}, {"x": {"c": 1}}),
        ({"items": A}, [{"a": 1}], [{"c": 1}]),
        ({"prefixItems": [A]}, [{"a": 1}], [{"c": 1}]),
        ({"anyOf": [A, B]}, {"b": 1}, {"a": 1, "b": 1}),
        ({"allOf": [A]}, {"a": 1}, {"c": 1}),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, {"a": 1}, {"c": 1}),
        ({"additionalProperties": A}, {"x": {"a": 1}}, {"x": {"c": 1}}),
        ({**A, "patternProperties": {"^x": B}}, {"x": {"b": 1}}, {"x": {"b": 1, "c": 1}}),
        ({"properties": {"properties": A}}, {"properties": {"a": 1}}, {"properties": {"c": 1}}),
    ],
)
def test_what_is_not_declared_goes(schema: Any, declared: Any, more: Any) -> None:
    assert takes(schema, declared)
    assert takes(schema, more)
    assert takes(closed(schema), declared)
    assert not takes(closed(schema), more)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "required": ["a", "elsewhere"]},
        {**A, "minProperties": 2},
        {"allOf": [A, B]},
        {**A, "anyOf": [B]},
        {**A, "$ref": "#/$defs/b", "$defs": {"b": B}},
        {"items": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "$defs": {"a": A, "b": B}},
        {"if": A, "then": B},
        {"not": A},
        {"const": A, "enum": [A], "default": A},
        {"properties": "none", "items": [A]},
        {"properties": {"a": True}, "required": 3},
    ],
)
def test_what_speaks_of_others_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema
