"""Valid JSON schemas that llguidance refuses as they are, against the library `jsonschema`; what refusals say."""

from typing import Any

import jsonschema
import pytest

from model.errors import ParameterError
from service.structured.constraint import json_constraint
from service.structured.json_schema import FORMATS, readable
from tests.service.structured.taking import COMPILER, takes

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
        ({**TEXT, "format": "regex"}, "(", None),
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
    oracle = jsonschema.Draft202012Validator({k: v for k, v in schema.items() if k != "$schema"})
    assert oracle.is_valid(good)
    assert takes(schema, good)
    assert not oracle.is_valid(bad) or "format" in str(schema)
    assert not takes(schema, bad)


@pytest.mark.parametrize("name", FORMATS)
def test_known_formats_stay(name: str) -> None:
    schema = {**TEXT, "format": name}
    assert readable(schema) == schema
    assert not takes(schema, "certainly not!")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {}, "contains": {}}, '"contains", "not"'),
        ({**TEXT, "minLength": 1.5}, "'minLength', got 1.5"),
        ({**TEXT, "pattern": "(?=a)b"}, "look-around, including look-ahead and look-behind, is not supported"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ],
)
def test_a_refusal_names_keyword_and_value(schema: Any, words: str) -> None:
    with pytest.raises(ParameterError) as caught:
        COMPILER.compile(json_constraint(schema, "x").serialized())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
