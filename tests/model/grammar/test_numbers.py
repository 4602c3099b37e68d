"""Numbers in answers of JSON end, whatever a model prefers. What only looks like one goes on."""

import json
from typing import Any

import pytest

from model.grammar.compiler import CompiledGrammars, Compiler
from model.grammar.numbers import MAX_DIGITS
from tests.model.grammar.vocabulary import END, PIECES, VOCABULARY, token

LIBRARY = CompiledGrammars(Compiler(VOCABULARY))
LIMIT = 200


def written(grammar: str, begin: str, favourite: str, draft: int = 0) -> str:
    """What a model writes after `begin` that always takes its favourite token, or else the first one allowed."""
    follower, tokens, text = LIBRARY.follower(grammar), [token(char) for char in begin], begin
    while len(text) < LIMIT:
        masks, fault = follower.masks(tokens, [token(favourite)] * draft)
        assert not fault
        for mask in masks:
            allowed = [n for n in range(len(PIECES)) if mask[n // 8] >> n % 8 & 1]
            chosen = token(favourite) if token(favourite) in allowed else allowed[0]
            tokens = [chosen] if mask is masks[0] else [*tokens, chosen]
            if chosen == END or not allowed:
                return text
            text += PIECES[chosen].decode()
            if chosen != token(favourite):
                break
    return text


def schema(value: Any) -> str:
    return json.dumps({"grammars": [{"json_schema": value}]})


NUMBER: dict[str, Any] = {"type": "number"}


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize(
    ("grammar", "begin"),
    [
        (schema(NUMBER), "1."),
        (schema(NUMBER), "1"),
        (schema(NUMBER), "1e"),
        (schema({**NUMBER, "minimum": 0, "maximum": 10}), "10."),
        (schema({"type": "integer"}), "1"),
        (schema({"type": "array", "items": NUMBER}), "[1."),
        (schema({"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}), '{"a":1.'),
        (schema({}), "[[1."),
    ],
)
def test_a_number_ends(grammar: str, begin: str, draft: int) -> None:
    text = written(grammar, begin, "0", draft)
    assert "0" * (MAX_DIGITS - 1) in text
    assert "0" * (MAX_DIGITS + 1) not in text


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize(
    ("grammar", "begin"),
    [
        (schema({"type": "string"}), '"'),
        (schema({"type": "string", "pattern": "^[0-9]+$"}), '"'),
        (schema({"type": "string", "pattern": "^[0-9., ]+$"}), '"1.'),
        (schema({"type": "string", "pattern": "^[0-9]{500}[.]$"}), '"'),
        ("start: /[0-9]+/", "1"),
    ],
)
def test_other_digits_go_on(grammar: str, begin: str, draft: int) -> None:
    assert "0" * (MAX_DIGITS + 1) in written(grammar, begin, "0", draft)
