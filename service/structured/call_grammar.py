"""The grammar of an answer that may call functions."""

import json
import re
from collections.abc import Iterator

from model.errors import quoted
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern
from service.errors.errors import InvalidRequest
from service.schema.tools import AllowedCalls, Function
from service.structured.call_style import SHORT_ID, Style
from service.structured.constraint import ANY_OBJECT, Constraint, Json, lark_grammar, with_spaces

MAX_ANSWER_CALLS = 32
"""The limit for calls in one answer."""
NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def call_constraint(
    calls: AllowedCalls, style: Style, tokenizer: Tokenizer, otherwise: Constraint | None = None
) -> Constraint:
    """The constraint of an answer that may call, or must. Without calls it follows `otherwise`, or is any text.

    Raises InvalidRequest for parameters that are not the schema of an object.
    """
    rules = [*_calls(calls, style, tokenizer)]
    if calls.must:
        return Constraint(_grammar("start: calls", *rules), ("tools",))
    if otherwise is None:
        return Constraint(_grammar(*_text_or_calls(style, tokenizer), *rules), ("tools",))
    whole = _grammar("start: @answer | calls", *rules)["grammars"]
    answer = otherwise.grammar["grammars"][0] | {"name": "answer"}
    return Constraint({"grammars": [*whole, answer]}, ("tools", *otherwise.fields))


def _grammar(*rules: str) -> Json:
    return lark_grammar("\n".join(rules))


def _calls(calls: AllowedCalls, style: Style, tokenizer: Tokenizer) -> Iterator[str]:
    """The rules for `calls`: one call or more, of which `others` are all but the first."""
    for number, function in enumerate(calls.functions):
        opening = _words(style.opening + function.name, tokenizer)
        middle, closing = _words(style.middle, tokenizer), _words(style.closing, tokenizer)
        before, after = _ids(style, tokenizer)
        yield f"call{number}: {opening} {before} {middle} arguments{number} {after} {closing}"
        yield f"arguments{number}: %json {json.dumps(_parameters(function, enforced=calls.must))}"
    yield "call: " + " | ".join(f"call{number}" for number in range(len(calls.functions)))
    more = "" if calls.one or style.single else f"({_words(style.between, tokenizer)} call){{0,{MAX_ANSWER_CALLS - 1}}}"
    yield f'others: "" {more} {_words(style.last, tokenizer)}'
    yield f"calls: {_words(style.first, tokenizer)} call others"


def _ids(style: Style, tokenizer: Tokenizer) -> tuple[str, str]:
    """What may be before and after the arguments of a call: the id that the model writes."""
    before, after = "", ""
    if style.id_before:
        before = f"({_words(style.id_before, tokenizer)} /{SHORT_ID.pattern}/)?"
    if style.id_after:
        opening, closing = (_words(words, tokenizer) for words in style.id_after)
        after = f"({opening} /{SHORT_ID.pattern}/ {closing})?"
    return before, after


def _text_or_calls(style: Style, tokenizer: Tokenizer) -> Iterator[str]:
    """The rules for `start`: free text or calls. Not anchored, calls may follow text."""
    if style.marker in tokenizer.control:
        yield f"start: TEXT {'| calls' if style.anchored else 'calls?'}"
        spelled = rf"(.|\n)*{re.escape(style.marker)}(.|\n)*"  # the text would be read as the control token
        yield rf"TEXT: /(.|\n)*/ & ~/{spelled}/"
    elif style.anchored:
        yield "start: TEXT | calls"
        yield r"TEXT: /([^{](.|\n)*)?/"
    else:
        yield f"start: TEXT | text_to_marker {_words(style.first.removeprefix(style.marker), tokenizer)} call others"
        yield rf"text_to_marker[lazy]: /(.|\n)*{re.escape(style.marker)}/"
        yield r"TEXT: /(.|\n)*/"


def _words(text: str, tokenizer: Tokenizer) -> str:
    """Fixed text in Lark. SentencePiece may put a space after a control token."""
    parts = re.split(f"({control_pattern(tokenizer.control).pattern})", text)
    space = ' " "?' if tokenizer.strips_leading_space else ""
    tokens = [f"<[{tokenizer.control[part]}]>{space}" if n % 2 else json.dumps(part) for n, part in enumerate(parts)]
    return " ".join(token for token in tokens if token != '""')


def _parameters(function: Function, *, enforced: bool) -> Json:
    """The schema of a call's arguments: any object, unless the schema is `enforced` or strict."""
    if not enforced and not function.strict:
        return with_spaces(ANY_OBJECT, "tools")
    schema = NO_PARAMETERS if function.parameters is None else function.parameters
    if schema.get("type", "object") != "object":
        message = f"tools: the parameters of {function.name} must be an object, got type {quoted(schema['type'])}"
        raise InvalidRequest(message, param="tools")
    return with_spaces({"type": "object"} | schema, "tools")
