"""Fields without effect are named: those that always pass, and with `--lenient` all others."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from model.chat.order import texts_beside_calls
from service.access.record import MAX_IGNORED
from service.observe.observer import MAX_CLIENTS, Notices
from tests.service.live import USER, FakeChat, Live, answer, refused, running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HEADER = "x-noria-ignored"


@pytest.fixture(scope="module")
def lenient() -> Iterator[Live]:
    with running(lenient=True) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/responses", {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        ("/v1/responses", {"input": "a", "text": {"verbosity": "medium"}}, None),
    ],
)
def test_some_fields_pass_and_are_named(live: Live, lenient: Live, path: str, body: Any, names: str | None) -> None:
    for server in (live, lenient):
        response = server.post(path, body)
        assert (response.status_code, response.headers.get(HEADER)) == (200, names), response.text


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        (COMPLETIONS, {"prompt": "a", "frobnicate": 1, "mirostat": 2}, "frobnicate, mirostat"),
        (COMPLETIONS, {"prompt": "a", "max_token": 1, "store": False}, "max_token"),
        (
            CHAT,
            {"messages": [*USER, {"role": "assistant", "content": [{"type": "text", "text": "a", "mood": 1}]}, *USER]},
            "messages[1].content[0].mood",
        ),
        (CHAT, {"messages": USER, "response_format": {"type": "text", "kind": "x"}}, "response_format.kind"),
        ("/v1/responses", {"input": "a", "moderation": {"model": "x"}}, "moderation"),
        ("/v1/messages", {"messages": USER, "max_tokens": 1, "metadata": {"tag": 1}}, "metadata.tag"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
    ],
)
def test_fields_without_effect_pass_and_are_named(
    live: Live, lenient: Live, path: str, body: dict[str, Any], names: str
) -> None:
    response = lenient.post(path, body)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == names
    assert live.post(path, body).status_code == 400


def test_answers_are_those_without_the_fields_and_known_fields_are_checked(lenient: Live) -> None:
    plain = {"prompt": "hello", "max_tokens": 5}
    response = lenient.post(COMPLETIONS, plain)
    assert HEADER not in response.headers
    ignoring = lenient.post(COMPLETIONS, plain | {"frobnicate": {"deep": [1]}})
    assert [reply.json()["choices"][0]["text"] for reply in (response, ignoring)] == [answer("hello", 5)] * 2
    assert refused(lenient, COMPLETIONS, plain | {"frobnicate": 1, "temperature": 3})["param"] == "temperature"
    misspelt = refused(lenient, COMPLETIONS, {"frobnicate": 1, "promt": "x"})["message"]
    assert misspelt.startswith("unknown field 'promt'")


class CallsOrText(FakeChat):
    """It writes the calls of a message, or its text."""

    call_style = "hermes"

    def left_out(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> list[int]:
        return texts_beside_calls(messages, merges=True)


@pytest.fixture(scope="module")
def calls_or_text() -> Iterator[Live]:
    with running(chat=CallsOrText()) as server:
        yield server


def called(text: str) -> list[Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "a"},
    ]


BLOCKS = [{"type": "text", "text": "So."}, {"type": "tool_use", "id": "a", "name": "f", "input": {}}]
ITEMS = [
    {"role": "assistant", "content": "So."},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
]


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        (CHAT, {"messages": [*USER, *called("So."), *called(" "), *called("")]}, "messages[1].content"),
        (CHAT, {"messages": [*USER, *called(""), *USER]}, None),
        (
            "/v1/messages",
            {"messages": [*USER, {"role": "assistant", "content": BLOCKS}, *USER], "max_tokens": 1},
            "messages",
        ),
        ("/v1/responses", {"input": [*USER, *ITEMS, *USER]}, "input"),
    ],
)
def test_texts_that_the_chat_format_leaves_out_are_named(
    live: Live, calls_or_text: Live, path: str, body: Any, names: str | None
) -> None:
    """A format without calls has them as text, and leaves out nothing."""
    for server, header in ((calls_or_text, names), (live, None)):
        response = server.post(path, body)
        assert (response.status_code, response.headers.get(HEADER)) == (200, header), response.text


def test_not_all_texts_that_are_left_out_are_named(calls_or_text: Live) -> None:
    messages = [*USER, *(message for _ in range(20) for message in called("So."))]
    names = calls_or_text.post(CHAT, {"messages": messages, "max_tokens": 1}).headers[HEADER].split(", ")
    assert (len(names), names[-1]) == (MAX_IGNORED + 1, "...")


def test_the_header_is_short_and_safe(lenient: Live) -> None:
    odd = {"a\r\nset-cookie: b": 1, "ü" * 100: 2} | {f"field{n}": n for n in range(1000)}
    names = lenient.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, **odd}).headers[HEADER].split(", ")
    assert names[0] == "a%0D%0Aset-cookie%3A%20b"
    assert (len(names), names[-1]) == (MAX_IGNORED + 1, "...")
    assert all(len(name) <= 64 and name.isascii() for name in names)


def test_the_log_has_a_line_for_each_client(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices()
    with caplog.at_level(logging.INFO, "noria.request"):
        for client in ("a", "b", "a", *map(str, range(MAX_CLIENTS)), "a"):
            notices.note(client, COMPLETIONS, ("frobnicate",))
    noted: list[Any] = [record for record in caplog.records if record.name == "noria.request"]
    clients = [record.fields["client"] for record in noted]  # other tests' servers may still log
    assert clients == ["a", "b", *map(str, range(MAX_CLIENTS)), "a"]  # it forgets those that are long gone
    assert {record.fields["fields"] for record in noted} == {"frobnicate"}


def test_the_server_logs_a_client_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "noria.request"), running(lenient=True) as live:
        for _ in range(3):
            live.complete(prompt="a", max_tokens=1, frobnicate=1)
    lines = [record for record in caplog.records if "no effect" in record.message]
    assert len(lines) == 1
    assert lines[0].fields == {"client": "127.0.0.1", "path": COMPLETIONS, "fields": "frobnicate"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "function", "name": "f", "parameters": {}, "x": 10**30}]}, "tools[0].x"),
        ({"text": {"format": {"type": "text", "x": 10**30}}}, "text.format.x"),
    ],
)
def test_an_answer_repeats_no_field_without_effect(lenient: Live, fields: dict[str, Any], named: str) -> None:
    """JSON writers have no integers of more than 64 bits."""
    response = lenient.post("/v1/responses", {"input": "a", "max_output_tokens": 2, **fields})
    assert (response.status_code, response.headers["x-noria-ignored"]) == (200, named)
    assert "x" not in response.json()["text"]["format"]
    assert all("x" not in tool for tool in response.json()["tools"])


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/responses", {"input": "a", "previous_response_id": "x"}, "previous_response_id"),
        ("/v1/chat/completions", {"messages": USER, "background": True}, "background"),
        ("/v1/responses", {"input": "a", "stop": ["x"]}, "stop"),
        ("/v1/messages", {"messages": USER, "max_tokens": 1, "random_seed": 3}, "random_seed"),
        ("/v1/messages", {"messages": USER, "max_tokens": 1, "frobnicate": 1, "logit_bias": {"5": 9}}, "logit_bias"),
        (CHAT, {"messages": USER, "prompt": "x"}, "prompt"),
    ],
)
def test_a_field_that_changes_an_answer_does_not_pass(
    lenient: Live, path: str, body: dict[str, Any], field: str
) -> None:
    response = lenient.post(path, body)
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
