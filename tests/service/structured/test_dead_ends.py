"""Constraints that no answer can satisfy are refused before the first token, in words about the client's own fields."""

from typing import Any

import pytest

from tests.service.live import USER, Live, refused
from tests.service.structured.accepts import takes

LONG = {"const": "x" * 200}
NEVER = {"type": "number", "minimum": 0.5, "maximum": 0.55, "multipleOf": 0.3}


def behind(schema: Any) -> dict[str, Any]:
    """An object whose last property comes after more than 200 tokens."""
    return {"type": "object", "properties": {"a": LONG, "b": schema}, "required": ["a", "b"]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"guided_grammar": 'start: "x"{200} A\nA: /a/ & /b/'}, ["no token can follow, after", "xxx"]),
        ({"guided_grammar": 'start: "x"{500} A\nA: /a/ & ~/(.|\\n)*/'}, ["no token can follow, after", "xxx"]),
        (
            {"guided_json": behind({"allOf": [{"type": "integer"}, {"multipleOf": 1.5, "minimum": 1, "maximum": 2}]})},
            ["b"],
        ),
        ({"guided_json": behind({"type": "integer", "multipleOf": 1.5, "minimum": 1, "maximum": 2})}, ["'b'"]),
        (
            {"guided_json": behind({"const": "\x01"}) | {"additionalProperties": True}},
            ["no token can follow", '\\"b\\"'],
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": behind(NEVER)}}},
            ["'b' is unsatisfiable"],
        ),
    ],
)
@pytest.mark.parametrize("n", [1, 6])
def test_a_dead_end_is_found_before_the_first_token(
    live: Live, fields: dict[str, Any], words: list[str], n: int
) -> None:
    error = refused(live, "/v1/completions", {"prompt": "x", "max_tokens": 40, "n": n, **fields})
    assert error["code"] == "invalid_grammar"
    assert error["param"] == next(iter(fields))
    assert all(word in error["message"] for word in words), error
    check_words(error["message"])


def check_words(message: str) -> None:
    for word in ("llguidance", "NoExtensionBias", "coerce_one_of", "call0", "arguments0", "(And", "lexemes"):
        assert word not in message


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "several of its schemas may match one value"),
        ({"anyOf": [{**TEXT, "pattern": "^a$", "minLength": 5}]}, "no text has this pattern, format and length"),
        ({**TEXT, "not": {}}, "no value meets all of it"),
        ({**TEXT, "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
        ({**TEXT, "minLength": 1.5}, "minLength must be a whole number, got 1.5"),
    ],
)
def test_a_refusal_is_about_the_clients_schema_wherever_it_is_sent(live: Live, schema: Any, words: str) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"]}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    for field, sent in {"guided_json": {"guided_json": schema}, "tools": tools}.items():
        error = refused(live, "/v1/chat/completions", {"messages": USER, "max_tokens": 3, **sent})
        assert error["param"] == field
        assert words in error["message"] or "'a' is unsatisfiable" in error["message"]
        assert error["message"].startswith(f"{field} cannot be enforced: ")
        check_words(error["message"])


def test_whole_multiples_of_a_fraction_are_allowed() -> None:
    schema = {"type": "integer", "multipleOf": 1.5}
    assert [n for n in range(-6, 10) if takes(schema, n)] == [-6, -3, 0, 3, 6, 9]


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "x"{1500}',
        'start: r\nr: "a" r | "b"',
        'start: "x"{100} (A | B)\nA: /a/ & /b/\nB: /b/',
        "start: /[a-z]{30,60}/",
    ],
)
def test_what_has_an_end_is_served(live: Live, grammar: str) -> None:
    assert live.complete(prompt="x", max_tokens=3, guided_grammar=grammar)["usage"]["completion_tokens"] == 3
