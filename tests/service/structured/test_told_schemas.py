"""Schemas of answers that a prompt tells, from each field of each API that has one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from model.errors import ParameterError
from service.structured.constraint import OBJECT_OR_LIST
from tests.service.live import USER, FakeChat, Live, refused, running

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "integer"}}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


class TellingChat(FakeChat):
    """It keeps the schemas that it was given, and refuses those with a title."""

    tells_schema = True

    def __init__(self) -> None:
        self.told: list[Any] = []

    def render(self, messages: Sequence[Mapping[str, Any]], *, schema: Any = None, **options: Any) -> str:
        self.told.append(schema)
        if schema and "title" in schema:
            raise ParameterError("schema", "this schema has a title")
        return super().render(messages, **options) + ("" if schema is None else "s")


@pytest.fixture(scope="module")
def chat() -> TellingChat:
    return TellingChat()


@pytest.fixture(scope="module")
def telling(chat: TellingChat) -> Iterator[Live]:
    with running(chat=chat) as server:
        yield server


def named(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}


def in_chat(**fields: Any) -> tuple[str, Json]:
    return CHAT, {"messages": USER, "max_tokens": 3, **fields}


def in_responses(**form: Any) -> tuple[str, Json]:
    return RESPONSES, {"input": "hi", "max_output_tokens": 3, "store": False, "text": {"format": form}}


def in_messages(schema: Json, path: str = MESSAGES) -> tuple[str, Json]:
    body = {"messages": USER, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    return path, body | ({"max_tokens": 3} if path == MESSAGES else {})


ASKED: Sequence[tuple[tuple[str, Json], Json]] = (
    (in_chat(response_format=named(SCHEMA)), SCHEMA),
    (in_chat(response_format={"type": "json_object"}), OBJECT_OR_LIST),
    (in_chat(response_format={"type": "json_object", "schema": SCHEMA}), SCHEMA),
    (in_chat(guided_json=SCHEMA), SCHEMA),
    (in_chat(guided_json='{"type": "object", "maxProperties": 0}'), {"type": "object", "maxProperties": 0}),
    (in_chat(structured_outputs={"json": SCHEMA}), SCHEMA),
    (in_chat(structured_outputs={"json_object": True}), OBJECT_OR_LIST),
    (in_responses(type="json_schema", name="thing", schema=SCHEMA), SCHEMA),
    (in_responses(type="json_object"), OBJECT_OR_LIST),
    (in_messages(SCHEMA), SCHEMA),
    (in_messages(SCHEMA, f"{MESSAGES}/count_tokens"), SCHEMA),
)


@pytest.mark.parametrize(("request_", "schema"), ASKED)
def test_a_schema_is_told_as_the_client_wrote_it(
    request_: tuple[str, Json], schema: Json, telling: Live, chat: TellingChat
) -> None:
    response = telling.post(*request_)
    assert response.status_code == 200, response.text
    assert chat.told[-1] == schema
    assert list(chat.told[-1].get("properties", {})) == list(schema.get("properties", {}))


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"guided_regex": "a"}, {"guided_choice": ["a"]}, {"guided_json": True}],
)
def test_nothing_is_told_without_a_schema(fields: Json, telling: Live, chat: TellingChat) -> None:
    path, body = in_chat(**fields)
    if fields == {"guided_json": True}:
        body["guided_json"] = "true"  # a schema that every JSON follows
    assert telling.post(path, body).status_code == 200
    assert chat.told[-1] is None


def test_counted_tokens_are_those_of_the_prompt_with_its_schema(telling: Live) -> None:
    path, body = in_messages(SCHEMA)
    used = telling.post(path, body).json()["usage"]["input_tokens"]
    assert telling.post(*in_messages(SCHEMA, f"{MESSAGES}/count_tokens")).json() == {"input_tokens": used}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (in_chat(response_format=named({"title": "x"})), "response_format"),
        (in_chat(structured_outputs={"json": {"title": "x"}}), "structured_outputs.json"),
        (in_responses(type="json_schema", name="thing", schema={"title": "x"}), "text.format"),
    ],
)
def test_a_schema_that_the_format_refuses_is_named_by_its_field(
    request_: tuple[str, Json], field: str, telling: Live
) -> None:
    error = refused(telling, *request_)
    assert (error["param"], error["message"]) == (field, "this schema has a title")


def test_a_schema_that_the_context_cannot_hold_is_refused(telling: Live) -> None:
    error = refused(telling, *in_chat(response_format=named({"description": "x" * 100_000})))
    assert error["param"] == "response_format"
    assert "context" in error["message"]


def test_a_format_that_tells_no_schema_gets_none(live: Live) -> None:
    assert live.post(*ASKED[0][0]).status_code == 200  # its encode has no such argument
