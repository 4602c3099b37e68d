"""Numbers that llguidance would change, against the library `jsonschema`."""

import math
from typing import Any

import jsonschema
import pytest

from model.errors import ParameterError
from service.errors.errors import InvalidRequest
from service.structured.constraint import json_constraint
from tests.service.structured.taking import COMPILER, takes

INT64 = 2**63
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


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
    ],
)
def test_large_numbers_are_enforced(schema: Any, good: Any, bad: Any) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid(good)
    assert not jsonschema.Draft202012Validator(schema).is_valid(bad)
    assert takes(schema, good)
    assert not takes(schema, bad)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
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


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["const", "minimum", "exclusiveMaximum"])
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
    with pytest.raises(ParameterError, match="llguidance says: "):
        COMPILER.compile(json_constraint(schema, "x").serialized())
