"""Structured output: all ways to say what an answer must look like, as one grammar (`model/grammar/compiler.py`)."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from model.sampling_params import MAX_GRAMMAR_CHARS
from service.http.errors import InvalidRequest, shown
from service.schema.fields import MAX_ITEMS, Body, Items, optional
from service.schema.harmless import HARMLESS_STRUCTURED
from service.structured.json_schema import bounded, closed

Json = dict[str, Any]
SPACE = r"\x20|\x0A[\x20\x09]{0,32}"
"""White space in JSON, a space or an indented new line: a small model would write it until its tokens run out."""
ANY_OBJECT: Json = {"type": "object"}


class JsonSchema(Body):
    """OpenAI's wrapper."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$", description="A comment.")
    description: str | None = optional("A comment.")
    schema_: Json | None = optional("Required with type json_schema.", alias="schema")
    strict: bool | None = optional("The schema is enforced either way.")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = Field(description="text, json_object or json_schema.")
    json_schema: JsonSchema | None = optional("With type json_schema.")


class StructuredOutputs(Body):
    """vLLM's: exactly one of them."""

    harmless = HARMLESS_STRUCTURED
    json_: Json | str | None = optional("A JSON schema, or one as a string.", alias="json")
    json_object: bool | None = optional("Any JSON object.")
    regex: str | None = optional("What the whole answer must match.")
    choice: Items[str] | None = optional("Texts, one of which is the answer.", max_length=MAX_ITEMS)
    grammar: str | None = optional("Lark, as llguidance takes it.")


class FormBody(Body):
    """A body that may ask for the form of its answer, in one of these ways."""

    response_format: ResponseFormat | None = optional("`text`, `json_object`, or `json_schema` with its schema.")
    structured_outputs: StructuredOutputs | None = optional(
        "One of `json`, `json_object`, `regex`, `choice`, `grammar`."
    )
    guided_json: Json | str | None = optional("A JSON schema, or one as a string.")
    guided_regex: str | None = optional("What the whole answer must match.")
    guided_choice: Items[str] | None = optional("Texts, one of which is the answer.", max_length=MAX_ITEMS)
    guided_grammar: str | None = optional("Lark, as llguidance takes it.")


class Constraint(NamedTuple):
    """A grammar, and the field that asked for it, if one did."""

    field: str | None = None
    grammar: str | None = None


def constraint(body: FormBody) -> Constraint:
    """What the answer must look like. Raises InvalidRequest for a contradiction or what is no schema."""
    found = [*_response_format(body.response_format), *_structured_outputs(body.structured_outputs), *_guided(body)]
    if len(found) > 1:
        message = f"{found[0][0]} and {found[1][0]} exclude each other: send one of them"
        raise InvalidRequest(message, param=found[1][0])
    for field, make, value in found:
        return Constraint(field, checked_size(make(value, field), field))
    return Constraint()


def checked_size(grammar: str, field: str) -> str:
    """The grammar. Raises InvalidRequest for one that is too long."""
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"{field} takes at most {MAX_GRAMMAR_CHARS} characters as a grammar, got {len(grammar)}"
        raise InvalidRequest(message, param=field)
    return grammar


Found = tuple[str, "Make", Any]
Make = Callable[[Any, str], str]


def _response_format(asked: ResponseFormat | None) -> list[Found]:
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [("response_format", json_grammar, ANY_OBJECT)]
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        param = "response_format.json_schema"
        raise InvalidRequest(f"{param}.schema is required with type json_schema", param=param)
    return [("response_format", json_grammar, asked.json_schema.schema_)]


def _structured_outputs(asked: StructuredOutputs | None) -> list[Found]:
    if asked is None:
        return []
    found = _named("structured_outputs.", asked.model_dump(by_alias=True))
    if not found:
        names = ", ".join([*_MAKERS, "json_object"])
        raise InvalidRequest(f"structured_outputs must have one of {names}", param="structured_outputs")
    return found


def _guided(asked: FormBody) -> list[Found]:
    return _named("guided_", {name: getattr(asked, f"guided_{name}") for name in _MAKERS})


def _named(prefix: str, values: Mapping[str, Any]) -> list[Found]:
    found = [(prefix + name, make, values[name]) for name, make in _MAKERS.items() if values[name] is not None]
    return [*found, (prefix + "json_object", json_grammar, ANY_OBJECT)] if values.get("json_object") else found


# One grammar each


def json_grammar(schema: Json | str, field: str) -> str:
    """JSON that a schema describes."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        value = with_spaces(value, field) if isinstance(value, dict) else value
        return json.dumps({"grammars": [{"json_schema": value}]}, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} is no JSON schema: {error}", param=field) from None


def with_spaces(schema: Json, field: str) -> Json:
    """A schema with our options for llguidance. Raises InvalidRequest for a client's own: they can make it lenient."""
    if "x-guidance" in schema:
        raise InvalidRequest(f"{field}: x-guidance is not supported, got {shown(schema['x-guidance'])}", param=field)
    return bounded(closed(schema)) | {"x-guidance": {"whitespace_pattern": SPACE}}


def regex_grammar(regex: str, field: str) -> str:
    """The whole text matches."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(regex)


def choice_grammar(choices: list[str], field: str) -> str:
    """One of some texts."""
    if not choices:
        raise InvalidRequest(f"{field} must not be an empty list", param=field)
    quoted = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return lark_grammar(f"start: CHOICE\nCHOICE: {quoted}")


def lark_grammar(grammar: str, field: str = "") -> str:
    return json.dumps({"grammars": [{"lark_grammar": grammar}]})


_MAKERS: Mapping[str, Make] = {
    "json": json_grammar,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": lark_grammar,
}
