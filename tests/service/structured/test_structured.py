"""Constraints of a request, and those that are refused before the engine sees them."""

import json
from typing import Any

import llguidance
import pytest

from tests.service.live import USER, Live, refused

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": FORMAT},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"structured_outputs": {"json_object": True, "regex": None}},
        {"structured_outputs": {"regex": "[a-z/]+", "whitespace_pattern": None}},
        {"structured_outputs": {"choice": ["yes", "no", 'ü "quoted" \\ \n']}},
        {"structured_outputs": {"grammar": 'start: "a" | "b"'}},
        {"guided_json": SCHEMA, "response_format": {"type": "text"}},
        {"guided_regex": "^a*$", "guided_decoding_backend": "guidance", "guided_whitespace_pattern": None},
        {"guided_choice": ["a"]},
        {"guided_grammar": "start: <end>"},
    ],
)
@pytest.mark.parametrize("chat", [True, False])
def test_every_way_to_ask_passes(live: Live, fields: dict[str, Any], chat: bool) -> None:
    answer = live.chat("hi", max_tokens=3, **fields) if chat else live.complete(prompt="hi", max_tokens=3, **fields)
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", ["json_schema", "xml"]),
        (
            {"response_format": {**FORMAT, "type": "json_object"}},
            "response_format.json_schema",
            ["only with type json_schema", 'got type "json_object"'],
        ),
        (
            {"response_format": {**FORMAT, "type": "text"}},
            "response_format.json_schema",
            ["only with type json_schema", 'got type "text"'],
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", ["schema is required"]),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}, None, ["name", "a b"]),
        ({"response_format": FORMAT, "guided_regex": "a"}, "guided_regex", ["response_format", "exclude"]),
        ({"guided_choice": ["a"], "structured_outputs": {"regex": "a"}}, "guided_choice", ["structured_outputs.regex"]),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", ["structured_outputs.json"]),
        ({"structured_outputs": {}}, "structured_outputs", ["json, regex, choice, grammar, json_object"]),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", ["must have one of"]),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend", ["unknown"]),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, None, ["whitespace_pattern", "null"]),
        ({"guided_choice": []}, "guided_choice", ["empty"]),
        ({"guided_choice": [1]}, "guided_choice[0]", ["string"]),
        ({"guided_regex": "("}, "guided_regex", ["cannot be enforced", "regex"]),
        ({"guided_regex": "(?=a)b"}, "guided_regex", ["look-around"]),
        ({"guided_json": "{"}, "guided_json", ["not a JSON schema"]),
        ({"guided_json": "[" * 100_000}, "guided_json", ["not a JSON schema"]),
        ({"guided_json": {"x-guidance": {"lenient": True}, "not": {}}}, "guided_json", ["x-guidance", "lenient"]),
        ({"guided_json": {"$ref": "http://localhost/x"}}, "guided_json", ["http://localhost/x"]),
        ({"guided_json": {"not": {}, "type": "string"}}, "guided_json", ["not"]),
        ({"guided_grammar": "x" * 200_000}, "guided_grammar", ["131072", "200"]),
        ({"guided_grammar": "start: a"}, "guided_grammar", ["cannot be enforced", "a"]),
        ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", ["true", "grammar"]),
        ({"guided_choice": ["a"], "min_tokens": 2}, "min_tokens", ["2", "grammar"]),
        ({"guided_grammar": f"start: {'a' * 100_000}", "n": 100}, "guided_grammar", ["8388608", "all choices"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(live: Live, fields: dict[str, Any], param: str | None, words: list[str]) -> None:
    error = refused(live, "/v1/chat/completions", {"messages": USER, "max_tokens": 3, **fields})
    assert param is None or error["param"] == param
    assert all(word in error["message"] for word in words), error


BOMB = "start: A\nA: " + " & ".join(f"/(.*a.{{{n}}}b.*)/" for n in range(30))
"""It has 2^30 states. `tests/model/grammar` has bombs of other kinds, `test_trial.py` one too deep for the stack."""


def test_a_bomb_is_refused_and_the_next_grammar_served(live: Live) -> None:
    error = refused(live, "/v1/completions", {"prompt": "x", "max_tokens": 3, "guided_grammar": BOMB})
    assert error["param"] == "guided_grammar"
    assert "2 s, 64 MiB" in error["message"]
    assert live.chat("hi", max_tokens=3, guided_choice=["after"])["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_grammar_that_fails_in_the_engine_fails_its_request(live: Live, stream: bool) -> None:
    body = {"messages": USER, "max_tokens": 3, "guided_grammar": 'start: "broken"', "stream": stream}
    error = refused(live, "/v1/chat/completions", body)
    assert error["code"] == "grammar_failed"
    assert error["message"] == "guided_grammar cannot be enforced any further: the grammar is broken"
    assert error["param"] == "guided_grammar"


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_in_one_sequence_is_the_servers(live: Live, stream: bool) -> None:
    body = {"messages": USER, "max_tokens": 3, "guided_grammar": 'start: "lost"', "stream": stream}
    error = refused(live, "/v1/chat/completions", body, 500)
    assert error["code"] == "engine_error"
    assert error["message"] == "the process that follows grammars was lost"


@pytest.mark.parametrize("field", ["guided_regex", "structured_outputs.regex"])
def test_a_long_regular_expression_is_refused_before_it_is_converted(
    live: Live, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[str] = []
    monkeypatch.setattr(llguidance, "regex_to_lark", converted.append)
    regex = "a" * 2**18
    body = {"guided_regex": regex} if field == "guided_regex" else {"structured_outputs": {"regex": regex}}
    error = refused(live, "/v1/completions", {"prompt": "a", **body})
    assert error["message"] == f"{field} may have at most 131072 characters as a grammar, got 262144"
    assert error["param"] == field
    assert not converted
