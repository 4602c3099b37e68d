"""Rewritten schemas against the library `jsonschema`: random ones of each rule, and values near what they allow.

No value is allowed that the schema does not allow. Some are missed: names come in the order of `properties`, and
objects are closed.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from model.errors import ParameterError
from service.errors.errors import InvalidRequest
from service.structured.constraint import json_constraint
from tests.service.structured.accepts import COMPILER, takes

Schema = dict[str, Any]

NAMES = "abc"
TEXTS, NUMBERS = ("", "a", "b", "ab", "x"), (0, 1, 2, 3, 1.5)
TYPES = ("null", "boolean", "string", "integer", "number", "object", "array")
SCHEMAS, VALUES = 25, 40


def value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(8 if depth < 2 else 6)
    if kind == 6:
        return [value(random, depth + 1) for _ in range(random.randrange(3))]
    if kind == 7:
        return {name: value(random, depth + 1) for name in NAMES if random.random() < 0.5}
    return random.choice(((None,), (True, False), TEXTS, TEXTS, NUMBERS, NUMBERS)[kind])


def near(random: Random) -> Any:
    """A value like those that the schemas below speak of."""
    kind = random.random()
    if kind < 0.6:
        return {name: value(random, 1) for name in NAMES + "d" if random.random() < 0.5}
    return value(random) if kind < 0.9 else [random.choice(("a", "b", 1, True)) for _ in range(random.randrange(4))]


def some(random: Random, names: str = NAMES, share: float = 0.5) -> list[str]:
    return [name for name in names if random.random() < share]


def plain(random: Random) -> Schema | bool:
    bound, size = random.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")), random.randrange(3)
    return random.choice(
        (
            {"type": random.choice(TYPES)},
            {"enum": [value(random, 2) for _ in range(size + 1)]},
            {"const": random.choice((*TEXTS, *NUMBERS, None, True))},
            {"type": "string", random.choice(("minLength", "maxLength")): size},
            {"type": random.choice(("integer", "number")), bound: size},
            {"type": ["string", "null"]},
            {"type": "string", "pattern": random.choice(("^a", "^[ab]+$", "^[^a]*$"))},
            random.choice((True, False)),
        )
    )


def schema(random: Random, depth: int = 0) -> Schema | bool:
    kind = random.randrange(12 if depth < 2 else 5)
    if kind < 5:
        return plain(random)
    if kind < 9:
        found: Schema = {"type": "object", "properties": {name: schema(random, depth + 1) for name in some(random)}}
        found |= random.choice(({}, {"required": some(random)}))
        return found | random.choice(({}, {}, {"additionalProperties": False}, {"additionalProperties": True}))
    if kind == 9:
        return {"required": some(random)}
    if kind == 10:
        return {"type": "array", "items": schema(random, depth + 1), random.choice(("minItems", "maxItems")): 1}
    return {random.choice(("anyOf", "allOf")): [schema(random, depth + 1) for _ in range(2)]}


def beside(random: Random) -> Schema:
    of_names = {name: plain(random) for name in some(random)}
    bases: tuple[Schema, ...] = ({}, {"type": "object", "properties": of_names}, {"type": ["string", "object", "null"]})
    return random.choice(bases)


def an_object(random: Random) -> Schema:
    found = {"type": "object", "properties": {name: plain(random) for name in NAMES}}
    return found | random.choice(({}, {"additionalProperties": True}, {"additionalProperties": False}))


def one_of(random: Random) -> Schema:
    return beside(random) | {"oneOf": [schema(random) for _ in range(random.randrange(1, 4))]}


def conditional(random: Random) -> Schema:
    parts = {key: schema(random, 1) for key in ("then", "else") if random.random() < 0.7}
    return beside(random) | {"if": schema(random, 1), **parts}


def dependent(random: Random) -> Schema:
    names = {name: some(random) for name in some(random)}
    schemas = {name: schema(random, 1) for name in some(random)}
    parts: tuple[Schema, ...] = ({"dependentRequired": names}, {"dependentSchemas": schemas})
    return an_object(random) | random.choice(parts)


def named(random: Random) -> Schema:
    names = ({"enum": ["a", "c"]}, {"pattern": "^[ab]+$"}, {"maxLength": 1}, {"not": {"enum": ["b", "c"]}})
    return random.choice((an_object(random), {"type": "object"})) | {"propertyNames": random.choice(names)}


def counted(random: Random) -> Schema:
    found = an_object(random) | {"required": some(random, share=0.3)}
    keys = random.choice((("minProperties",), ("maxProperties",), ("minProperties", "maxProperties")))
    return found | {key: random.randrange(4) for key in keys}


def unique(random: Random) -> Schema:
    items = random.choice(({"enum": ["a", "b", 1]}, {"enum": [True, False]}, {"enum": ["a", "a", 1, True]}))
    bound = random.choice(({}, {"minItems": 1}, {"maxItems": 2}))
    return {"type": "array", "items": items, "uniqueItems": True, **bound}


def referring(random: Random) -> Schema:
    definitions = {"x": schema(random), "y": schema(random)}
    return {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"type": "null"}], "$defs": definitions}


RULES: dict[str, Callable[[Random], Schema]] = {
    "not": lambda random: beside(random) | {"not": schema(random)},
    "oneOf": one_of,
    "if": conditional,
    "dependencies": dependent,
    "propertyNames": named,
    "minProperties": counted,
    "uniqueItems": unique,
    "$ref": referring,
    "within": lambda random: {"type": "object", "properties": {"a": one_of(random), "b": conditional(random)}},
}


@pytest.mark.parametrize("rule", RULES)
def test_no_value_is_allowed_by_mistake(rule: str) -> None:
    check(rule, SCHEMAS)


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
def test_no_value_of_10_000_is_allowed_by_mistake(rule: str) -> None:
    check(rule, 10_000 // VALUES)


def check(rule: str, n_schemas: int) -> None:
    """Compare so many schemas, each with VALUES values."""
    random, right, missed, compared = Random(rule), 0, 0, 0
    while compared < n_schemas:
        one = RULES[rule](random)
        try:
            matcher = COMPILER.compile(json_constraint(one, "x").serialized())
        except (InvalidRequest, ParameterError):
            continue  # no rule writes it, or it has no value
        validator, compared = Draft202012Validator(one), compared + 1
        for found in (near(random) for _ in range(VALUES)):
            text = [*json.dumps(found).encode()]
            fresh = matcher.deep_copy()
            taken = fresh.try_consume_tokens(text) == len(text) and fresh.is_accepting()
            valid = validator.is_valid(found)
            assert valid or not taken, (one, found)
            right += taken
            missed += valid and not taken
    assert right > 2 * missed


@pytest.mark.parametrize(
    ("one", "good", "bad"),
    [
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}}, ["a", None], [1]),
        (
            {
                "type": "object",
                "properties": {"a": True, "b": True},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            [{"a": 1}, {"b": 2}],
            [{}, {"a": 1, "b": 2}],
        ),
        ({"type": "string", "not": {"enum": ["ab", "", "b"]}}, ["a", "abc", "bb"], ["ab", "", "b"]),
        ({"type": "integer", "not": {"enum": [3, 5]}}, [2, 4, 6], [3, 5]),
        ({"type": "string", "not": {"pattern": "^[ab]*$"}}, ["c", "abc"], ["", "ab"]),
        ({"enum": ["any", "#0"], "not": {"pattern": "^#"}}, ["any"], ["#0"]),
        (
            {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "null"}}]},
            [["a"], [None]],
            [[], [1]],
        ),
        (
            {"properties": {"a": {"const": 1}, "b": True}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
            [{"a": 1, "b": 2}, {"b": 2}, {}],
            [{"a": 1}],
        ),
        (
            {
                "$defs": {"x": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x", "type": "object"}}}},
                "$ref": "#/$defs/x",
            },
            [{"a": {"a": {}}}],
            [{"a": 1}],
        ),
    ],
)
def test_values_on_both_sides(one: Schema, good: list[Any], bad: list[Any]) -> None:
    assert all(takes(one, found) for found in good)
    assert not any(takes(one, found) for found in bad)


@pytest.mark.parametrize("draft", ["draft-04", "draft-06"])
def test_a_draft_without_a_keyword_ignores_it(draft: str) -> None:
    one = {"$schema": f"http://json-schema.org/{draft}/schema#", "type": "integer", "if": True, "then": {"const": 1}}
    assert takes(one, 2)
    assert not takes(one | {"$schema": "http://json-schema.org/draft-07/schema#"}, 2)


def test_definitions_that_nothing_names_are_left_out() -> None:
    one = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}, "b": {"contains": {}}}}
    assert takes(one, None)


JUNK: tuple[Any, ...] = (None, True, 0, -1, 1.5, 1e300, "", "a", "#", "#/$defs/a", "^(", [], [{}], {}, {"type": {}})


@pytest.mark.parametrize("key", [*RULES, "required", "type", "enum", "properties", "additionalProperties", "pattern"])
def test_what_is_no_schema_is_refused_and_breaks_nothing(key: str) -> None:
    """Each value that is no schema, alone and within each keyword that has schemas."""
    for junk in JUNK:
        for one in ({key: junk}, {"not": {key: junk}}, {"oneOf": [{key: junk}, {key: junk}]}, {"if": {key: junk}}):
            with suppress(InvalidRequest):
                json_constraint(one | {"then": {"items": {key: junk}}}, "x").serialized()


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
STRING, NUMBER = {"type": "string"}, {"type": "number"}


@pytest.mark.parametrize(
    ("one", "wrong"),
    [
        (DRAFT_4 | {"not": {"enum": [False]}}, False),
        ({"properties": {"a": {"$id": "http://q/", **DRAFT_4, "not": {"enum": [False]}}}}, {"a": False}),
        ({"items": NUMBER, "not": {"prefixItems": [True], "items": STRING}}, [1]),
        ({"prefixItems": [STRING], "items": NUMBER, "not": {"items": STRING}}, ["a"]),
        ({"oneOf": [{"type": "array", "prefixItems": [STRING], "items": False}, {"items": STRING}]}, ["a"]),
        ({"not": {"contains": STRING, "minContains": 0}}, [1]),
        ({"type": "object", "propertyNames": {"const": "b", "enum": ["a"]}}, {"b": 1}),
        ({"type": "object", "propertyNames": {"type": "number", "enum": ["a"]}}, {"a": 1}),
        ({"type": "object", "propertyNames": {"type": "null", "pattern": "^a"}}, {"a": 1}),
        ({"oneOf": [{"const": "&"}, {"type": "string", "pattern": "^[a&&b]+$"}]}, "&"),
        ({"oneOf": [{"const": "[b]"}, {"type": "string", "pattern": "^[[a]b]$"}]}, "[b]"),
        ({"enum": ["<a", "b"], "not": {"pattern": "^\\<a$"}}, "<a"),
    ],
)
def test_what_was_allowed_by_mistake_once(one: Schema, wrong: Any) -> None:
    with suppress(InvalidRequest, ParameterError):
        assert not takes(one, wrong)


def nested(depth: int) -> Schema:
    found: Schema = {"type": "null"}
    for _ in range(depth):
        found = {"items": {"anyOf": [found]}, "not": {"const": 1}}
    return found


NAMED = {f"name{n}": {} for n in range(255)}
COUNTED = {"type": "object", "properties": NAMED, "additionalProperties": False, "maxProperties": 1}


@pytest.mark.parametrize(
    "one",
    [
        COUNTED | {"minProperties": 10**30},
        {"not": {"const": "a" * 950}},
        nested(100),
        {"allOf": [{"$ref": "#"}] * 1000, "not": {"const": 1}},
        {"oneOf": [{"type": "string", "enum": ["s", *(f"{i} {n} of many" for n in range(45))]} for i in range(20)]},
        {"allOf": [{"not": {"enum": [*range(1000)]}}] * 50},
        {"properties": {f"p{n}": {"oneOf": [True] * 256} for n in range(100)}},
        {"properties": {f"p{n}": COUNTED for n in range(50)}},
    ],
)
def test_what_would_take_long_is_refused(one: Schema) -> None:
    with pytest.raises(InvalidRequest):
        json_constraint(one, "x").serialized()
