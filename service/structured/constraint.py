"""Structured output: the grammar of a request's fields, and its trial in a process that a bad grammar may kill."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pydantic_core import from_json

from model.errors import quoted
from model.grammar.client import GrammarProcess
from model.grammar.process import COMPILE_BYTES, COMPILE_SECONDS, TRY_SECONDS
from model.grammar.vocabulary import Vocabulary
from model.machine.helper import First
from model.sampling_params import MAX_GRAMMAR_CHARS
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.helpers import LimitsExceeded, Recent, Trial
from service.schema.fields import Json
from service.schema.structure import Structure
from service.schema.structured_output import ResponseFormat, StructuredOutputBody, StructuredOutputs
from service.structured.json_schema import enforceable, mixes_names

SPACE = r"\x20|\x0A[\x20\x09]{0,32}"
"""White space in JSON: a space or an indented new line. Small models would otherwise write it until max_tokens."""
SHORT_ESCAPES = 'nrbtf\\"'
"""Escapes without \\u, which could write a declared name in a second way where other names are allowed."""
ANY_OBJECT: Json = {"type": "object"}
OBJECT_OR_LIST: Json = {"anyOf": [{"type": "object"}, {"type": "array"}]}
"""The schema for json_object that Mistral's models know."""


class Constraint(NamedTuple):
    """A grammar as llguidance takes it, and the client's names of the fields that made it. Errors name the first.

    `schema` is the JSON schema that a prompt tells, None for a grammar of another kind.
    """

    grammar: Json
    fields: tuple[str, ...]
    schema: Json | None = None

    def serialized(self) -> str:
        """Return the grammar as text. Raises InvalidRequest if it is too long, or has numbers that are not JSON."""
        names = " and ".join(self.fields)
        try:
            text = json.dumps(self.grammar, allow_nan=False)
        except ValueError:
            message = f"{names} cannot be enforced: it has a number that is not JSON, such as NaN or Infinity"
            raise InvalidRequest(message, param=self.fields[0]) from None
        _check_length(text, names, self.fields[0])
        return text


def _check_length(text: str, names: str, param: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARS:
        message = f"{names} may have at most {MAX_GRAMMAR_CHARS} characters as a grammar, got {len(text)}"
        raise InvalidRequest(message, param=param)


def constraint(body: StructuredOutputBody) -> Constraint | None:
    """Return the constraint of a request, if there is one. Raises InvalidRequest for two, or a wrong schema."""
    found = [*_response_format(body.response_format), *_structured_outputs(body.structured_outputs), *_guided(body)]
    if len(found) > 1:
        message = f"{found[0][0]} and {found[1][0]} exclude each other: send only one of them"
        raise InvalidRequest(message, param=found[1][0])
    return next((make(value, field) for field, make, value in found), None)


Make = Callable[[Any, str], Constraint]
"""Makes the constraint of a field from its value and its name."""
Found = tuple[str, Make, Any]


def _response_format(chosen: ResponseFormat | None) -> list[Found]:
    if chosen is not None and chosen.schema_ is not None and chosen.type != "json_object":
        param, kind = "response_format.schema", quoted(chosen.type)
        raise InvalidRequest(f"{param} is allowed only with type json_object, got type {kind}", param=param)
    if chosen is not None and chosen.json_schema is not None and chosen.type != "json_schema":
        param, kind = "response_format.json_schema", quoted(chosen.type)
        raise InvalidRequest(f"{param} is allowed only with type json_schema, got type {kind}", param=param)
    if chosen is None or chosen.type == "text":
        return []
    if chosen.type == "json_object":
        return [("response_format", object_constraint, chosen.schema_)]
    if chosen.json_schema is None or chosen.json_schema.schema_ is None:
        param = "response_format.json_schema"
        raise InvalidRequest(f"{param}.schema is required with type json_schema", param=param)
    return [("response_format", json_constraint, chosen.json_schema.schema_)]


def _structured_outputs(chosen: StructuredOutputs | None) -> list[Found]:
    if chosen is None:
        return []
    found = _named("structured_outputs.", chosen.model_dump(by_alias=True))
    if not found:
        names = ", ".join([*_MAKERS, "json_object"])
        raise InvalidRequest(f"structured_outputs must have one of {names}", param="structured_outputs")
    return found


def _guided(body: StructuredOutputBody) -> list[Found]:
    fields = {f"guided_{name}": make for name, make in _MAKERS.items()}
    return [
        (body.given_as(name), make, value) for name, make in fields.items() if (value := body.agreed(name)) is not None
    ]


def _named(prefix: str, values: Mapping[str, Any]) -> list[Found]:
    found = [(prefix + name, make, values[name]) for name, make in _MAKERS.items() if values[name] is not None]
    return [*found, (prefix + "json_object", object_constraint, None)] if values.get("json_object") else found


# The makers of constraints


def object_constraint(schema: Json | None, field: str) -> Constraint:
    """Return the constraint of any JSON object, or of a schema if there is one. Raises InvalidRequest."""
    if schema is not None:
        return json_constraint(schema, field)
    return json_constraint(ANY_OBJECT, field)._replace(schema=OBJECT_OR_LIST)


def json_constraint(schema: Json | str, field: str) -> Constraint:
    """Return the constraint of JSON that follows a schema. Raises InvalidRequest."""
    value: Any = schema
    try:
        if isinstance(schema, str):
            Structure().add(schema.encode(), "the text")
            value = from_json(schema, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"{field} is not a JSON schema: {error}", param=field) from None
    if not isinstance(value, dict):
        return Constraint({"grammars": [{"json_schema": value}]}, (field,))
    return Constraint({"grammars": [{"json_schema": with_spaces(value, field)}]}, (field,), value)


def with_spaces(schema: Json, field: str) -> Json:
    """Return the schema with options for llguidance.

    Raises InvalidRequest for options of the client: they could make llguidance ignore parts of the schema.
    """
    if "x-guidance" in schema:
        raise InvalidRequest(f"{field}: x-guidance is not supported, got {quoted(schema['x-guidance'])}", param=field)
    try:
        changed = enforceable(schema)
    except (ValueError, RecursionError) as error:
        why = "its schemas are nested too deep" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{field} cannot be enforced: {why}", param=field, code="invalid_grammar") from None
    escapes = {"json_allowed_escapes": SHORT_ESCAPES} if mixes_names(changed) else {}
    return changed | {"x-guidance": {"whitespace_pattern": SPACE, **escapes}}


def regex_grammar(regex: str, field: str) -> Json:
    """Return the grammar of texts that match a regular expression as a whole. Raises InvalidRequest for a long one."""
    _check_length(regex, field, field)  # its conversion takes time in this process
    from llguidance import regex_to_lark

    return lark_grammar(f"start: /{regex_to_lark(regex)}/")


def choice_grammar(choices: list[str], field: str) -> Json:
    """Return the grammar of a choice among texts."""
    if not choices:
        raise InvalidRequest(f"{field} must not be an empty list", param=field)
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return lark_grammar(f"start: CHOICE\nCHOICE: {alternatives}")


def lark_grammar(grammar: str, field: str = "") -> Json:
    return {"grammars": [{"lark_grammar": grammar}]}


def _by(grammar: Callable[[Any, str], Json]) -> Make:
    return lambda value, field: Constraint(grammar(value, field), (field,))


_MAKERS: Mapping[str, Make] = {
    "json": json_constraint,
    "regex": _by(regex_grammar),
    "choice": _by(choice_grammar),
    "grammar": _by(lark_grammar),
}

MAX_REMEMBERED = 1024
MAX_TOTAL_CHARS = 2**23
"""The limit for all choices of a request together: each choice goes to the engine with a copy of the grammar."""
TOO_MUCH = f"compiling it takes more than {COMPILE_SECONDS:g} s, {COMPILE_BYTES >> 20} MiB or a deep stack"


class Grammars:
    """The checker of grammars: it tries one at a time, and remembers what the compiler said. One per server."""

    def __init__(self, on_restart: Callable[[], None] = lambda: None) -> None:
        problems: Recent[bytes, str] = Recent(MAX_REMEMBERED)  # "" for a grammar without problem
        self._trial: Trial[GrammarProcess, bytes, str] = Trial(
            "tries grammars", "grammar_unavailable", problems, on_restart, lasting=False
        )

    async def check(self, served: ServedModel, request: ModelRequest) -> None:
        """Raise InvalidRequest, naming the field, for a grammar that cannot be used; Unavailable without a process."""
        grammar = request.params.grammar
        if grammar is None:
            return
        names, field = " and ".join(request.grammar_fields), request.grammar_fields[0]
        total = len(grammar) * request.n_choices
        if total > MAX_TOTAL_CHARS:
            message = f"{names} may have at most {MAX_TOTAL_CHARS} characters over all choices together, got {total}"
            raise InvalidRequest(message, param=field)
        if problem := await self._problem(served, grammar):
            raise InvalidRequest(f"{names} cannot be enforced: {problem}", param=field, code="invalid_grammar")

    async def close(self) -> None:
        """End the processes and the threads."""
        await self._trial.close()

    async def _problem(self, served: ServedModel, grammar: str) -> str:
        """Return the problem of a grammar, "" if none. Only the compiler's word is remembered. Raises Unavailable.

        A grammar that takes more than TRY_SECONDS is tried again in a process of its own, so that no other waits behind
        it. If it exceeds the limits there, too, it is at fault.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        if (known := self._trial.recent.find(digest)) is not None:  # it does not wait for the trial of another
            return known
        for apart, seconds in ((False, TRY_SECONDS), (True, COMPILE_SECONDS)):
            start = partial(_start, served, seconds)
            with suppress(LimitsExceeded):
                return (await self._trial.ask(digest, start, lambda process: process.ask(grammar), apart=apart))[0]
        return TOO_MUCH


def _start(served: ServedModel, seconds: float) -> GrammarProcess:
    vocabulary = Vocabulary.of(served.tokenizer, served.defaults.eos_token_ids, served.info.vocab_size)
    return GrammarProcess(First({"vocabulary": vocabulary.to_json(), "seconds": seconds}))
