"""Patterns of strings and of names, against Python's `re`: the grammar is searched, no model."""

import re
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from llguidance import LLMatcher

from model.errors import ParameterError
from service.errors.errors import InvalidRequest
from service.schema.tools import AllowedCalls, Function
from service.structured.call_style import STYLES, call_constraint
from service.structured.strings import narrowed
from tests.fakes import IntegerTokenizer
from tests.service.structured.accepts import COMPILER, accepts_any, matcher_of

UNIT = "\x1f"
"""The control character that a class in brackets does not match: docs/api.md says so."""
CHARS = (
    "a",
    "b",
    "Z",
    "0",
    "_",
    " ",
    '"',
    "\\",
    "/",
    "-",
    "[",
    "]",
    "&",
    "~",
    "\n",
    "\t",
    "\x01",
    "\x1e",
    UNIT,
    "\x7f",
)
TEXT_CHARS = (*CHARS, "é", "😀", "{", "\r")
SHORTHANDS = (r"\d", r"\D", r"\w", r"\W", r"\s", r"\S")
RANGES = ("a-z", "0-9", r"\x00-\x1f", r"\x00-\x7f", r"\0-\x21".replace(r"\0", r"\x00"), "#-[", r" -~", "+--", "--a")


def literal(rng: Random) -> str:
    char = rng.choice([char for char in CHARS if char != UNIT])
    return rng.choice([f"\\x{ord(char):02x}", f"\\u{ord(char):04x}", re.escape(char)])


def bracket(rng: Random) -> str:
    items = [rng.choice([*RANGES, *SHORTHANDS, '"', r"\\", "a", "[", "&&", "~~", r"\]", r"\n", UNIT, r"\-", " "])]
    items += [rng.choice(['"', r"\\", "b", "[", "&", r"\n", r"\t"]) for _ in range(rng.randrange(3))]
    return f"[{rng.choice(['^', '^', ''])}{''.join(items)}]"


def atom(rng: Random, depth: int) -> str:
    kind = rng.randrange(10)
    if kind < 5:
        return bracket(rng)
    if kind < 7 or not depth:
        return rng.choice([literal(rng), ".", rng.choice(SHORTHANDS)])
    return f"({alternatives(rng, depth - 1)})"


def alternatives(rng: Random, depth: int = 2) -> str:
    def sequence() -> str:
        parts = range(rng.randrange(1, 4))
        return "".join(atom(rng, depth) + rng.choice(["", "", "", "?", "*", "+", "{1,2}"]) for _ in parts)

    return "|".join(sequence() for _ in range(rng.choice([1, 1, 2])))


def anchored(rng: Random) -> str:
    pattern = alternatives(rng)
    return rng.choice([f"^({pattern})$", f"^({pattern})$", f"^({pattern})", pattern])


def found(pattern: str, text: str) -> bool:
    """Whether Python finds it. JSON Schema's classes are ASCII, and its `$` is the end of the text."""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return re.search(re.sub(r"\$\Z", r"\\Z", pattern), text, re.ASCII) is not None


def in_string(pattern: str) -> tuple[Any, str, str]:
    return {"type": "string", "pattern": pattern}, '"', '"'


def in_name(pattern: str) -> tuple[Any, str, str]:
    schema = {"type": "object", "patternProperties": {pattern: {"const": 1}}, "additionalProperties": False}
    return schema, '{"', '":1}'


def cases(rng: Random, n: int) -> Iterator[tuple[str, LLMatcher, str, str]]:
    """Random patterns that have a grammar, in strings and in names."""
    while n:
        pattern = anchored(rng)
        schema, before, end = rng.choice([in_string, in_string, in_name])(pattern)
        try:
            matcher = matcher_of(schema)
        except (ParameterError, InvalidRequest):  # no text at all, or a range after a shorthand
            continue
        n -= 1
        yield pattern, matcher, before, end


@pytest.mark.parametrize("seed", range(5))
def test_a_grammar_accepts_a_text_in_a_spelling_exactly_if_python_finds_the_pattern(seed: int) -> None:
    rng = Random(seed)
    n_found = 0
    for pattern, matcher, before, end in cases(rng, 200):
        for _ in range(10):
            text = "".join(rng.choices(TEXT_CHARS, k=rng.choice([0, 1, 1, 2, 3])))
            expected = found(pattern, text)
            accepted = accepts_any(matcher, before, text, end)
            assert accepted == expected or (expected and UNIT in text), (pattern, text, expected)
            n_found += expected
    assert n_found > 400


QUOTED = ['a"b', "C:\\a", "\\", '"']


@pytest.mark.parametrize("where", [in_string, in_name])
@pytest.mark.parametrize(
    "pattern",
    [
        r'^[^"\\]+$',
        r'^[^\n"\\]+$',
        r"^[\x00-\x1f]+$",
        r'^([^"\\]|\s)*$',
        r'^([^"\\]|[\x00-\x1f])*$',
        r"^\P{Po}+$",
        r"^\p{Cc}+$",
        r"^[\p{Cc}ab]+$",
        r'^[^]"\\]+$',
        r"^(?i)[^\"\\]+$",
    ],
)
def test_a_class_without_quote_and_backslash_has_none(where: Any, pattern: str) -> None:
    schema, before, end = where(pattern)
    matcher = matcher_of(schema)
    assert not any(accepts_any(matcher, before, text, end) for text in QUOTED)
    assert accepts_any(matcher, before, "\x1e", end)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/other/x", "other": {"x": {"type": "string", "pattern": '^[^"]*$'}}},
        {"anyOf": [{"$defs": {}, "type": "string", "pattern": '^[^"]*$'}]},
        {"allOf": [{"type": "string"}, {"pattern": '^[^"]*$'}]},
    ],
)
def test_a_pattern_is_found_wherever_it_is(schema: Any) -> None:
    matcher = matcher_of(schema)
    assert accepts_any(matcher, '"', "ab", '"')
    assert not accepts_any(matcher, '"', 'a"b', '"')


def test_a_pattern_in_a_list_of_items_is_found() -> None:
    draft = "http://json-schema.org/draft-07/schema#"
    matcher = matcher_of({"$schema": draft, "type": "array", "items": [{"type": "string", "pattern": '^[^"]*$'}]})
    assert accepts_any(matcher, '["', "ab", '"]')
    assert not accepts_any(matcher, '["', 'a"b', '"]')


def test_the_arguments_of_a_strict_tool_follow_patterns_and_have_one_spelling_of_names() -> None:
    role = {"role": {"const": "user"}, "a": {"type": "string", "pattern": '^[^"]*$'}}
    parameters = {"type": "object", "properties": role, "required": ["role", "a"], "additionalProperties": True}
    function = Function(name="f", parameters=parameters, strict=True)
    grammar = call_constraint(AllowedCalls((function,)), STYLES["hermes"], IntegerTokenizer()).serialized()
    matcher = COMPILER.compile(grammar)
    assert isinstance(matcher, LLMatcher)
    before, end = '<tool_call>\n{"name": "f", "arguments": {"role": "user", "a": "', "}\n</tool_call>"
    assert accepts_any(matcher, before, "b\\", '"}' + end)
    assert not accepts_any(matcher, before, 'b"', '"}' + end)
    assert accepts_any(matcher, before + '", "', "other", '": "admin"}' + end)
    assert not accepts_any(matcher, before + '", "', "role", '": "admin"}' + end)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (UNIT, "pattern has U+001F"),
        (r"a|\x1f", "pattern has U+001F"),
        (r"\x{01F}", "pattern has U+001F"),
        ("(?ix)a # [", "pattern has the flag x"),
    ],
)
def test_what_would_be_misread_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        matcher_of({"pattern": pattern})


def test_two_names_that_become_one_pattern_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="patternProperties has one pattern twice"):
        matcher_of({"patternProperties": {"[&]": True, r"[\&]": False}})


@pytest.mark.parametrize("part", ["[", "[^", "[\\", "(?", "(?i", r"\p{", "[a]"])
def test_a_pattern_is_read_once(part: str) -> None:
    """A quadratic time would be minutes here: the pattern comes from a client."""
    assert len(narrowed(part * 40_000)) >= len(part) * 40_000
