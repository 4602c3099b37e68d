"""Bodies take what they declare, and refusals speak JSON, name the place, and suggest the field that was meant."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from model.errors import quoted
from service.api.forms import FORM
from service.app import ROUTES
from service.errors.refusals import invalid_body
from service.errors.wording import meant
from service.schema.fields import Body
from tests.service.live import USER, Live, refused


def fields_of(body: type[Body]) -> dict[str, FieldInfo]:
    """The fields of a body by the names that clients use."""
    return {field.alias or name: field for name, field in body.model_fields.items()}


def names_of(body: type[Body]) -> tuple[str, ...]:
    """The names of fields that a body accepts."""
    return (*fields_of(body), *body.passing())


def inside(annotation: Any) -> Iterator[type[Body]]:
    """The bodies that a field of this annotation may hold, and those inside them."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation
        for field in annotation.model_fields.values():
            yield from inside(field.annotation)
    for argument in get_args(annotation):
        yield from inside(argument)


BODIES = {route.path: route.body for route in ROUTES if route.body is not None and route.body_type != FORM}
KINDS = list(dict.fromkeys(kind for body in BODIES.values() for kind in inside(body)))
TEXTS = {"arguments": "{}", "role": "user", "encrypted_content": "noria-summary:a"}
"""Values for fields that do not accept "a"."""


def least(kind: type[Body]) -> dict[str, Any]:
    """A valid body with nothing but the required fields, and a content where there may be one."""
    return {
        field.alias or name: value_of(name, field.annotation)
        for name, field in kind.model_fields.items()
        if field.is_required() or name == "content"
    }


def value_of(name: str, annotation: Any) -> Any:
    """A value of the annotation, of a union's first member."""
    if name in TEXTS:
        return TEXTS[name]
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return least(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [value_of(name, arguments[0])]
    if origin is dict:
        return {}
    if arguments:
        return value_of(name, arguments[0])
    return {int: 1, bool: True}.get(annotation, "a")


WRONG: tuple[Any, ...] = (None, True, -1, 2.5, 10**30, "x y", [None], [{"a": None}], {"a": [False]}, {"type": "x"})
PYTHON = re.compile(r"\b(None|True|False|dict|dictionary|tuple|pydantic|instance|NoneType)\b|Input should|(?<!\w)'")
NAMED = re.compile(
    r"(unknown fields? |, |did you mean )'[^']*'|'Authorization: Bearer KEY'|'x-api-key: KEY'|cannot be enforced: .*"
    r"|Input should be 'user' or 'assistant', or 'system'"
)
"""Names of fields are in single quotes; values are JSON. A sentence of another library is quoted as it is. Claude
Code knows the refusal of a role by its words."""


def check_words(message: str) -> None:
    assert not PYTHON.search(NAMED.sub("", message)), message


@pytest.mark.parametrize("path", BODIES)
def test_every_field_of_every_endpoint_is_refused_in_json(live: Live, path: str) -> None:
    """The values that the body itself accepts: the next test has the others."""
    kind = BODIES[path]
    body = least(kind) | {name: 1 for name in ("max_tokens", "max_output_tokens") if name in kind.model_fields}
    for name in names_of(kind):
        for value in WRONG:
            try:
                kind.model_validate_json(json.dumps(body | {name: value}))
            except ValidationError:
                continue
            response = live.post(path, body | {name: value})
            assert response.status_code in (200, 400, 404), response.text
            if response.status_code != 200:
                error = response.json()["error"]
                check_words(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_object_is_refused_in_json(kind: type[Body]) -> None:
    valid = least(kind)
    for name in (*names_of(kind), "frobnicate"):
        for value in WRONG:
            body = valid | {name: value}
            try:
                kind.model_validate_json(json.dumps(body))
            except ValidationError as error:
                refusal = invalid_body(error, body)
                check_words(refusal.message)
                assert refusal.param is None or name in refusal.param, refusal.message


@pytest.mark.parametrize("kind", KINDS)
def test_each_misspelt_field_gets_its_name(kind: type[Body]) -> None:
    for name in (field.alias or name for name, field in kind.model_fields.items()):
        if len(name) < 6 or f"{name}s" in names_of(kind):
            continue
        for misspelt in (f"{name}_", name[:3] + name[4:], name.title().replace("_", "")):
            if misspelt not in names_of(kind):
                assert meant(misspelt, names_of(kind)) == name


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PART = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"promt": "a"}, "unknown field 'promt': did you mean 'prompt'?"),
        (CHAT, {"messages": USER, "maxTokens": 5}, "unknown field 'maxTokens': did you mean 'max_tokens'?"),
        (CHAT, {"messages": USER, "zzz": 1, "stops": 2}, "unknown fields 'zzz', 'stops' (did you mean 'stop'?)"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [PART, {**PART, "txet": 1}]}]},
            "messages[0].content[1]: unknown field 'txet': did you mean 'text'?",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]},
            "messages[0].content[0]: unknown field 'txt': did you mean 'text'?",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
            'messages[0].content[0].type "audio" is not supported: '
            'only "text", "thinking", "image_url" or "input_audio"',
        ),
        (CHAT, {"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type is required"),
        (CHAT, {"messages": USER, "stream": None, "n": "2"}, 'n must be an integer, got "2"'),
        (
            CHAT,
            {"messages": USER, "tool_choice": "must"},
            'tool_choice must be "none", "auto", "required" or "any" or an object, got "must"',
        ),
        (
            CHAT,
            {"messages": USER, "tools": [{"type": "web_search"}]},
            'tools[0].type "web_search" is not supported: only "function"; this server runs no tools itself: declare '
            "functions, and run them in the client",
        ),
        (CHAT, {"messages": USER, "stop_sequences": ["a"]}, "unknown field 'stop_sequences': did you mean 'stop'?"),
        (
            CHAT,
            {"messages": USER, "json_schema": "x"},
            "json_schema is not a JSON schema: expected value at line 1 column 1",
        ),
        (
            CHAT,
            {"messages": USER, "max_completion_tokens": 2, "n_predict": 1},
            "n_predict (1) and max_completion_tokens (2) differ: send one of them",
        ),
        (RESPONSES, {"messages": USER}, "unknown field 'messages': did you mean 'input'?"),
        (CHAT, {"temperature": 1}, "messages is required"),
        (
            RESPONSES,
            {"input": [{"type": "reasoning", "summary": []}]},
            "input has no message, no call and no output",
        ),
        (
            MESSAGES,
            {"max_tokens": 1, "messages": USER, "tool_choice": {"type": "auto", "name": "f"}},
            'tool_choice.name is allowed only with type tool, got type "auto"',
        ),
        (
            RESPONSES,
            {"input": "a", "response_format": {}},
            "unknown field 'response_format': did you mean 'text.format'?",
        ),
        (
            MESSAGES,
            {"max_tokens": 1, "messages": USER, "cache_control": "x"},
            'cache_control is not supported: only null, {"type": "ephemeral"} or one of its 8 variants in docs/api.md '
            'is accepted, got "x"',
        ),
    ],
)
def test_the_place_and_the_name_that_is_meant(live: Live, path: str, body: dict[str, Any], message: str) -> None:
    response = live.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


def test_a_long_or_odd_name_stays_on_one_short_line(live: Live) -> None:
    message = refused(live, CHAT, {"messages": USER, "a\n\u202e" + "b" * 5000: 1})["message"]
    assert len(message) < 120
    assert message.isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ([True, 1.0, "é"], '[true, 1.0, "é"]'),
        ({"a": {"b": []}}, '{"a": {"b": []}}'),
        ("'\"\n", '"\'\\"\\n"'),
        ("\u202e", '"\\u202e"'),
        ("x" * 100, '"' + "x" * 79 + "..."),
    ],
)
def test_values_are_quoted_as_json(value: Any, text: str) -> None:
    assert quoted(value) == text


def refusals(kind: type[Body], name: str, value: object) -> str:
    """The error for a body with this value in this field, if any."""
    try:
        kind.model_validate_json(json.dumps(least(kind) | {name: value}))
    except ValidationError as error:
        return " ".join(item["msg"] for item in error.errors())
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_is_known_harmless_or_refused(kind: type[Body]) -> None:
    """Each name of any body. A harmless field passes with null and its declared values."""
    for name in dict.fromkeys(name for other in KINDS for name in names_of(other)):
        if name in kind.passing() and name not in fields_of(kind):
            assert not any(refusals(kind, name, value) for value in (None, *kind.passing()[name]))
            assert all("is not supported: only" in refusals(kind, name, value) for value in ("else", 7, ["x"]))
        else:
            assert ("unknown field" in refusals(kind, name, "x")) == (name not in names_of(kind) and not kind.left_out)


def test_every_field_has_a_meaning() -> None:
    for kind in KINDS:
        assert all(field.description for field in kind.model_fields.values()), kind
