"""Objects with declared properties have no others, unless their schema mentions others or is joined to one."""

import json
from typing import Any

import jsonschema
import pytest

from model.errors import ParameterError
from model.grammar.compiler import Compiler
from service.structured.constraint import json_constraint
from service.structured.json_schema import closed
from tests.fakes import IntegerTokenizer

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
        {"oneOf": [A, B]},
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


COMPILER = Compiler.of(IntegerTokenizer(), [0], 256)
NUMBERS = (
    "0",
    "-0",
    "0.0",
    "0.001",
    "0.4",
    "0.5",
    "0.6",
    "1",
    "1.0",
    "1.3",
    "2",
    "2.01",
    "-0.3",
    "-1",
    "-1.2",
    "100",
    "99.9",
)


@pytest.mark.parametrize(
    "lower", [{}, *({key: n} for key in ("minimum", "exclusiveMinimum") for n in (0, 1, 2.0, -1, 0.4, -0.3))]
)
@pytest.mark.parametrize(
    "upper", [{}, *({key: n} for key in ("maximum", "exclusiveMaximum") for n in (0, 1, 0.5, 1.3, 2.01, 100))]
)
def test_bounds_of_numbers_hold(lower: Any, upper: Any) -> None:
    schema = {"type": "number", **lower, **upper}
    try:
        matcher = COMPILER.compile(json_constraint(schema, "schema").serialized())
    except ParameterError:
        assert not any(takes(schema, json.loads(text)) for text in NUMBERS)
        return
    for text in NUMBERS:
        tokens, fresh = list(text.encode()), matcher.deep_copy()
        if fresh.try_consume_tokens(tokens) == len(tokens) and fresh.is_accepting():
            assert takes(schema, json.loads(text)), (schema, text)


def test_a_discriminator_is_required_and_keeps_closed_branches_apart() -> None:
    """pydantic writes a union like this if each kind has a default. No branch then requires its kind."""
    one = {"type": "object", "properties": {"kind": {"const": "a", "default": "a"}, **A["properties"]}}
    two = {"type": "object", "properties": {"kind": {"const": "b", "default": "b"}}}
    union = {"oneOf": [{"$ref": "#/$defs/a"}, two], "discriminator": {"propertyName": "kind"}}
    schema = {"type": "object", "properties": {"item": union}, "required": ["item"], "$defs": {"a": one}}
    matcher = COMPILER.compile(json_constraint(schema, "schema").serialized())
    for item, passes in (
        ({"kind": "a", "a": 1}, True),
        ({"kind": "b"}, True),
        ({"a": 1}, False),
        ({}, False),
        ({"kind": "b", "a": 1}, False),
    ):
        tokens, fresh = list(json.dumps({"item": item}).encode()), matcher.deep_copy()
        assert (fresh.try_consume_tokens(tokens) == len(tokens) and fresh.is_accepting()) == passes, item
        assert takes(schema, {"item": item}) or not passes
