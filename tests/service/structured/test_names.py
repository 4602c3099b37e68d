"""Names of open objects: one spelling each, and no name that counts twice."""

from typing import Any

import pytest

from service.errors.errors import InvalidRequest
from tests.service.structured.accepts import accepts_any, matcher_of, takes

ROLE = {"properties": {"role": {"const": "user"}}, "required": ["role"]}
OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        {**OBJECT, **ROLE, "additionalProperties": True},
        {**OBJECT, **ROLE, "additionalProperties": {"type": "string"}},
        {**OBJECT, **ROLE, "patternProperties": {"": {"type": "string"}}},
        {**OBJECT, **ROLE, "patternProperties": {"^x": {"const": 1}}, "additionalProperties": True},
        {**OBJECT, **ROLE, "minProperties": 2},
        {**OBJECT, **ROLE, "required": ["role", "other"]},
        {"allOf": [{**OBJECT, **ROLE}, OBJECT]},
        {"$ref": "#/$defs/x", "$defs": {"x": {**OBJECT, **ROLE, "additionalProperties": {}}}},
    ],
)
def test_a_declared_name_has_no_second_spelling(schema: Any) -> None:
    matcher = matcher_of(schema)
    for before in ('{"role": "user", "', '{"role": "user", "other": "", "'):
        assert not accepts_any(matcher, before, "role", '": "admin"}')
    assert accepts_any(matcher, '{"role": "user", "', "other", '": "admin"}')


@pytest.mark.parametrize("name", ["a\tb", "a\x01b", "\x7f"])
def test_a_declared_name_with_a_control_character_has_no_second_spelling(name: str) -> None:
    patterns = {"": {"type": "integer"}}
    matcher = matcher_of({**OBJECT, "properties": {name: {"const": 1}}, "patternProperties": patterns})
    assert accepts_any(matcher, '{"', name, '":1}')
    assert not accepts_any(matcher, '{"', name, '":2}')
    assert accepts_any(matcher, '{"', "other", '":2}')


@pytest.mark.parametrize(
    "schema",
    [
        {**OBJECT, "properties": {"a": {"type": "string"}}},
        {**OBJECT, "properties": {"a": {"type": "string"}}, "additionalProperties": False},
        {**OBJECT, "additionalProperties": {"type": "string"}},
        {**OBJECT, "properties": {"a": {**OBJECT}, "required": {**OBJECT}}},
        OBJECT,
    ],
)
def test_strings_have_all_control_characters_where_no_name_is_both_declared_and_open(schema: Any) -> None:
    value = {} if schema.get("properties", {}).get("a", {}).get("type") == "object" else "\x1b[0m"
    assert takes(schema, {"a": value or {"b": "\x1b[0m"}})


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        {**OBJECT, "minProperties": 2},
        {**OBJECT, "minProperties": 3.0, "additionalProperties": TEXT},
        {**OBJECT, "minProperties": 2, "patternProperties": {"^a": TEXT}, "additionalProperties": False},
        {**OBJECT, "minProperties": 3, "properties": {"a": TEXT}, "required": ["a"]},
        {"allOf": [{**OBJECT, "minProperties": 2}, {"additionalProperties": TEXT}]},
    ],
)
def test_a_count_that_one_name_could_reach_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"x cannot be enforced: minProperties [23]"):
        matcher_of(schema)


@pytest.mark.parametrize(
    ("schema", "enough", "few"),
    [
        ({**OBJECT, "minProperties": 1}, {"a": "b"}, {}),
        ({**OBJECT, "minProperties": 2, "properties": {"a": TEXT}, "required": ["a"]}, {"a": "", "b": 1}, {"a": ""}),
        ({**OBJECT, "minProperties": 2, "required": ["a", "b"]}, {"a": 1, "b": 1}, {"a": 1}),
        ({**OBJECT, "minProperties": 1, "properties": {"a": TEXT}, "additionalProperties": False}, {"a": ""}, {}),
    ],
)
def test_a_count_that_needs_different_names_is_enforced(schema: Any, enough: Any, few: Any) -> None:
    assert takes(schema, enough)
    assert not takes(schema, few)
