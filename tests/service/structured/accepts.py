"""What the grammar of a schema accepts: in one spelling, or in any spelling of JSON."""

import json
from typing import Any

from llguidance import LLMatcher

from model.grammar.compiler import Compiler
from service.structured.constraint import json_constraint
from tests.fakes import IntegerTokenizer

COMPILER = Compiler.of(IntegerTokenizer(), [0], 256)
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def matcher_of(schema: Any) -> LLMatcher:
    """The grammar of the schema at its start. Raises ParameterError, or InvalidRequest."""
    matcher = COMPILER.compile(json_constraint(schema, "x").serialized())
    assert isinstance(matcher, LLMatcher)
    return matcher


def after(matcher: LLMatcher, text: str) -> LLMatcher | None:
    """The matcher after a text, None if the text is not allowed."""
    copy, tokens = matcher.deep_copy(), [*text.encode()]
    return copy if copy.try_consume_tokens(tokens) == len(tokens) else None


def accepts(matcher: LLMatcher, text: str) -> bool:
    """Whether the grammar accepts this text to its end."""
    end = after(matcher, text)
    return end is not None and end.is_accepting()


def takes(schema: Any, value: Any) -> bool:
    """Whether the grammar of the schema accepts the JSON of a value to its end."""
    return accepts(matcher_of(schema), json.dumps(value))


def spellings(char: str) -> set[str]:
    """The ways to write a character in a string of JSON."""
    units = char.encode("utf-16-be").hex()
    long = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    raw = {char} if char >= " " and char not in '"\\' else set()
    return raw | {SHORT.get(char, long), long, long.upper().replace("U", "u")}


def accepts_any(matcher: LLMatcher, before: str, text: str, end: str) -> bool:
    """Whether the grammar accepts `before`, the text in any spelling, and `end`."""
    reached = [after(matcher, before)]
    for char in text:
        reached = [after(state, spelling) for state in reached if state for spelling in spellings(char)]
    return any(accepts(state, end) for state in reached if state)
