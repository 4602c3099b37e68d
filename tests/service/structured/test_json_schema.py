"""JSON schemas as llguidance gets them, against the library `jsonschema`: closed objects, other keywords, numbers."""

import json
import math
from typing import Any

import jsonschema
import pytest

from model.errors import ParameterError
from service.errors.errors import InvalidRequest
from service.structured.constraint import json_constraint
from service.structured.json_schema import FORMATS, enforceable, readable
from tests.service.structured.accepts import COMPILER, takes

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


def valid(schema: Any, value: Any) -> bool:
    """Whether the value follows the schema, by the library `jsonschema`."""
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
    assert valid(schema, declared)
    assert valid(schema, more)
    assert valid(enforceable(schema), declared)
    assert not valid(enforceable(schema), more)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "required": ["a", "elsewhere"]},
        {"allOf": [A, B]},
        {**A, "anyOf": [B]},
        {**A, "$ref": "#/$defs/b", "$defs": {"b": B}},
        {"items": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "$defs": {"a": A, "b": B}},
        {"const": A, "enum": [A]},
    ],
)
def test_what_speaks_of_others_stays_as_it_is(schema: Any) -> None:
    assert enforceable(schema) == schema


@pytest.mark.parametrize(
    "schema", [{"oneOf": [A, B]}, {"if": A, "then": B}, {"not": B}, {**A, "dependencies": {"a": B}}]
)
def test_what_is_rewritten_from_several_stays_open(schema: Any) -> None:
    assert "'additionalProperties': False" not in str(enforceable(schema))


NUMBERS = (
    *("0", "-0", "0.0", "0.001", "0.4", "0.5", "0.6", "1", "1.0", "1.3", "2", "2.01"),
    *("-0.3", "-1", "-1.2", "100", "99.9"),
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
        assert not any(valid(schema, json.loads(text)) for text in NUMBERS)
        return
    for text in NUMBERS:
        tokens, fresh = list(text.encode()), matcher.deep_copy()
        if fresh.try_consume_tokens(tokens) == len(tokens) and fresh.is_accepting():
            assert valid(schema, json.loads(text)), (schema, text)


@pytest.mark.parametrize(
    ("bound", "inside", "outside"), [({"maximum": 1000.5}, 1000.25, 1000.75), ({"minimum": -2.5}, -2.25, -2.75)]
)
def test_a_bound_keeps_its_fraction(bound: dict[str, float], inside: float, outside: float) -> None:
    """A bound moves inward only where a double cannot hold it."""
    schema = {"type": "number", **bound}
    assert takes(schema, inside)
    assert not takes(schema, outside)


def test_a_discriminator_is_required_and_keeps_closed_branches_apart() -> None:
    """pydantic writes a union like this if each kind has a default. No branch then requires its kind."""
    one = {"type": "object", "properties": {"kind": {"const": "a", "default": "a"}, **A["properties"]}}
    two = {"type": "object", "properties": {"kind": {"const": "b", "default": "b"}}}
    union = {"oneOf": [{"$ref": "#/$defs/a"}, two], "discriminator": {"propertyName": "kind"}}
    schema = {"type": "object", "properties": {"item": union}, "required": ["item"], "$defs": {"a": one}}
    for item, passes in (
        ({"kind": "a", "a": 1}, True),
        ({"kind": "b"}, True),
        ({"a": 1}, False),
        ({}, False),
        ({"kind": "b", "a": 1}, False),
    ):
        assert takes(schema, {"item": item}) == passes, item
        assert valid(schema, {"item": item}) or not passes


TEXT = {"type": "string"}


def many(n: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": kind} for i in range(n)}, **more}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**TEXT, "minLength": 2.0, "maxLength": 3.0}, "ab", "a"),
        ({"type": "array", "items": TEXT, "minItems": 1.0, "maxItems": 2.0}, ["a"], []),
        ({"type": "object", "minProperties": 1.0, "additionalProperties": TEXT}, {"a": "b"}, {}),
        ({**TEXT, "format": "phone"}, "x", 1),
        ({**TEXT, "format": "regex"}, "(a|b)*", "(a"),
        ({"type": "integer", "format": "int32"}, 5, "5"),
        (
            {**many(2, "string"), "properties": {"format": {**TEXT, "format": "uri-reference"}}},
            {"format": "x"},
            {"f": 1},
        ),
        ({"type": "array", "items": TEXT, "uniqueItems": False}, ["a", "a"], [1]),
        ({**many(1, "string"), "dependentRequired": {}, "dependencies": {}, "propertyNames": True}, {"p0": "a"}, 1),
        ({**TEXT, "not": False}, "a", 1),
        ({**TEXT, "$schema": "https://example.com/my-dialect"}, "a", 1),
        ({"anyOf": [{**TEXT, "format": "phone"}, {"type": "null"}]}, None, 1),
        ({"enum": [{"format": "phone", "not": False}]}, {"format": "phone", "not": False}, {"format": "x"}),
        ({"const": {"uniqueItems": False}}, {"uniqueItems": False}, {}),
        (many(500, "string"), {"p1": "a", "p250": "b", "p499": "c"}, {"p1": 1}),
        (many(500, "integer"), {"p1": 1, "p250": 2, "p499": 3}, {"p1": "x"}),
        (many(500, "string", additionalProperties=True), {"p1": "a", "p499": "c", "z": 1}, {"p1": 1}),
    ],
)
def test_valid_schemas_are_enforced(schema: Any, good: Any, bad: Any) -> None:
    known = {key: value for key, value in schema.items() if key != "$schema"}
    assert valid(known, good)
    assert takes(schema, good)
    assert not valid(known, bad) or "format" in str(schema)
    assert not takes(schema, bad)


@pytest.mark.parametrize("name", FORMATS)
def test_known_formats_stay(name: str) -> None:
    schema = {**TEXT, "format": name}
    assert readable(schema) == schema
    assert not takes(schema, "certainly (not!")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"contains": {}}, "$.contains is not supported"),
        ({"items": [{}, {**TEXT, "not": {"pattern": "a+b"}}]}, "$.items[1].not is not supported, with pattern in it"),
        ({"not": {}}, "no value meets all of it"),
        ({**TEXT, "minLength": 1.5}, "minLength must be a whole number, got 1.5"),
        ({**TEXT, "pattern": "(?=a)b"}, "look-around, including look-ahead and look-behind, is not supported"),
        (
            {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "required": ["a"]},
            "$.properties.a.oneOf is not supported, with type in it: several of its schemas may match one value",
        ),
    ],
)
def test_a_refusal_names_keyword_and_value(schema: Any, words: str) -> None:
    with pytest.raises((InvalidRequest, ParameterError)) as caught:
        COMPILER.compile(json_constraint(schema, "x").serialized())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


INT64 = 2**63
WHOLE = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**WHOLE, "minimum": -INT64, "maximum": INT64 - 1}, 5, 2 * INT64),
        ({**WHOLE, "minimum": -INT64}, -INT64 + 1024, -INT64 - 1),
        ({**WHOLE, "minimum": 2**53 + 1}, 2**53 + 2, 2**53),
        ({**WHOLE, "exclusiveMinimum": 2**53 + 1}, 2**53 + 4, 2**53 + 1),
        ({**WHOLE, "maximum": -(2**53) - 1}, -(2**53) - 2, -(2**53)),
        ({**WHOLE, "maximum": 2**60 + 1}, 2**60, 2**60 + 2),
        ({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}, 1.5, "x"),
        ({"type": "array", "items": {**WHOLE, "minimum": 0, "maximum": 2**64 - 1}}, [7], [-1]),
        ({"const": 2**53 + 2}, 2**53 + 2, 2**53),
        ({"enum": [0.3, 10**18]}, 10**18, 10**18 + 1),
        ({"enum": [1.5e-21, 123456.789012345, -1e-22]}, 123456.789012345, 123456.789012346),
    ],
)
def test_large_numbers_are_enforced(schema: Any, good: Any, bad: Any) -> None:
    assert valid(schema, good)
    assert not valid(schema, bad)
    assert takes(schema, good)
    assert not takes(schema, bad)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"const": 1.234567890123456}, "const has the number 1.234567890123456, which has too many digits"),
        ({"const": 1e-23}, "const has the number 1e-23, which has too many digits"),
        ({"enum": [1234567890123456789]}, "enum has the number 1234567890123456789, which has too many digits"),
        ({"const": {"id": [2**64 - 1]}}, "const has the number 18446744073709551615, which has too many digits"),
        ({"const": 10**400}, "which has too many digits: use a string"),
        ({"const": -INT64}, "const has the number -9223372036854775808, which has too many digits"),
        ({"const": 123456789.12345679}, "const has the number 123456789.12345679, which has too many digits"),
        ({"anyOf": [{"const": 1e23}, TEXT]}, "const has the number 1e+23, which has too many digits"),
        ({**WHOLE, "minimum": 10**20}, "minimum 100000000000000000000 is beyond 9223372036854774784"),
        ({**WHOLE, "maximum": -(10**20)}, "maximum -100000000000000000000 is beyond -9223372036854774784"),
        ({**WHOLE, "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "have too many digits"),
    ],
)
def test_numbers_that_would_change_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match="x cannot be enforced") as caught:
        json_constraint(schema, "x")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "number"), [("const", math.nan), ("minimum", math.inf), ("exclusiveMaximum", -math.inf)]
)
def test_a_number_that_is_not_json_is_refused(name: str, number: float) -> None:
    with pytest.raises(InvalidRequest, match="x cannot be enforced: it has a number that is not JSON"):
        json_constraint({**WHOLE, name: number}, "x").serialized()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a"},
        {"$ref": "not a ref"},
        {**WHOLE, "minimum": "3"},
        {"type": "object", "required": "a"},
        {"allOf": [TEXT, WHOLE]},
        {**WHOLE, "multipleOf": 7, "minimum": 8, "maximum": 13},
        {**WHOLE, "multipleOf": 0},
        {**WHOLE, "multipleOf": 10**20},
        {"anyOf": [1]},
    ],
)
def test_faults_of_schemas_are_refused(schema: Any) -> None:
    with pytest.raises((InvalidRequest, ParameterError), match=r"\w"):
        COMPILER.compile(json_constraint(schema, "x").serialized())
