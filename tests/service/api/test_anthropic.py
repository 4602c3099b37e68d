"""Anthropic's Messages API: their shapes, their events, their errors."""

import json
from typing import Any

import pytest

from service.access.record import Policy, RequestRecord
from service.api.anthropic.messages import MessagesBody
from service.api.anthropic.shape import MessageShape
from service.generation.choice import Delta
from service.generation.usage import Usage, timings
from service.schema.tools import AllowedCalls
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES
from tests.service.live import Live, answer, running
from tests.service.structured.call_texts import ARGUMENTS, TEXTS

RECORD = RequestRecord("1", "POST", "/v1/messages", None, Policy())
NO_TIME = timings(Usage(), None, 0, 0, 0)

PATH = "/v1/messages"
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"name": "weather", "description": "Tells it.", "input_schema": {"type": "object"}, "strict": True}]
CALL = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "a"}}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "words"}
DOCUMENT = {"type": "document", "source": PLAIN}
PDF = {"type": "base64", "media_type": "application/pdf", "data": ""}
REFERENCE = {"type": "tool_reference", "tool_name": "weather"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}


def say(live: Live, **body: Any) -> dict[str, Any]:
    response = live.post(PATH, {"messages": USER, "max_tokens": 5, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_message(live: Live) -> None:
    reply = say(live, model="fake")
    assert reply.pop("id").startswith("msg_")
    assert reply.pop("timings")["predicted_n"] == 5
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": answer("u:hi;a:", 5)}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


def test_events_build_the_same_message(live: Live) -> None:
    events = live.events(PATH, {"messages": USER, "max_tokens": 20})
    start, ping, block, *deltas, stop, delta, last = events
    assert [event["type"] for event in (start, ping, block)] == ["message_start", "ping", "content_block_start"]
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert start["message"]["usage"]["input_tokens"] + start["message"]["usage"]["cache_read_input_tokens"] == 7
    assert {event["type"] for event in deltas} == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in deltas) == answer("u:hi;a:", 20)
    assert stop == {"type": "content_block_stop", "index": 0}
    assert delta["type"] == "message_delta"
    assert delta["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 20
    assert last["type"] == "message_stop"


def test_system_blocks_and_messages_of_one_role(live: Live) -> None:
    """A system prompt goes first; messages of one role are joined; fields that an SDK sends back pass."""
    blocks = [{"type": "text", "text": "be"}, {"type": "text", "text": " kind", "cache_control": {"type": "ephemeral"}}]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c", "citations": None}]},
        {"role": "user", "content": "d"},
    ]
    reply = say(live, system=blocks, messages=messages, temperature=0.5, top_p=0.9, top_k=3)
    assert reply["content"][0]["text"] == answer("s:be kind;u:a\n\nb;a:c;u:d;a:", 5)
    assert say(live, system="be kind", messages=messages)["content"] == reply["content"]


SYSTEM = {"role": "system", "content": "be"}
SAID = {"role": "assistant", "content": "so"}


@pytest.mark.parametrize(
    ("system", "messages", "prompt"),
    [
        (None, [SYSTEM, *USER], "s:be;u:hi;a:"),
        ("all", [SYSTEM, *USER], "s:all\n\nbe;u:hi;a:"),
        ("all", [*USER, SYSTEM], "s:all;u:hi;s:be;a:"),
        (None, [*USER, SYSTEM, SYSTEM, *USER], "u:hi;s:be\n\nbe;u:hi;a:"),
        (None, [*USER, SYSTEM, SAID], "u:hi;s:be;a:so"),
        (None, [*USER, SAID, SYSTEM], "u:hi;a:so;s:be;a:"),
    ],
)
def test_a_system_message_stands_where_it_is_sent(live: Live, system: Any, messages: Any, prompt: str) -> None:
    body = {"system": system, "messages": messages}
    assert say(live, **body)["content"][0]["text"] == answer(prompt, 5)
    assert live.post(f"{PATH}/count_tokens", body).json() == {"input_tokens": len(prompt)}


def test_a_system_message_may_come_between_a_call_and_its_result() -> None:
    messages = [*USER, {"role": "assistant", "content": [CALL]}, SYSTEM, {"role": "user", "content": [RESULT]}]
    chat = MessagesBody.model_validate({"messages": messages, "max_tokens": 5, "tools": TOOLS}).chat()
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "system", "tool"]


@pytest.mark.parametrize(
    ("n", "max_tokens", "words"),
    [
        (57, 3, "input length and `max_tokens` exceed context limit: 62 + 3 > 64, decrease"),
        (58, 1, None),
        (59, 1, "prompt is too long: 64 tokens > 63 maximum"),
        (80, 5, "prompt is too long: 85 tokens > 64 maximum"),
        (321, 5, "prompt is too long: at least 65 tokens > 64 maximum"),
    ],
)
def test_claude_code_reads_what_is_too_long(n: int, max_tokens: int, words: str | None) -> None:
    """Its expressions find the numbers. A text that cannot fit is not tokenized: a token has at most 5 bytes."""
    with running(max_model_len=64) as live:
        reply = live.post(PATH, {"messages": [{"role": "user", "content": "x" * n}], "max_tokens": max_tokens})
    assert reply.status_code == (400 if words else 200)
    assert not words or reply.json()["error"]["message"].startswith(words)


EDITS = {"command", "path", "file_text", "old_str", "new_str", "insert_line", "insert_text", "view_range"}
EDITOR = "str_replace_based_edit_tool"


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        ({"type": "bash_20241022", "name": "bash"}, {"command", "restart"}),
        ({"type": "bash_20250124", "name": "bash", "strict": True}, {"command", "restart"}),
        ({"type": "text_editor_20250429", "name": EDITOR}, EDITS),
        ({"type": "text_editor_20250728", "name": EDITOR, "max_characters": 9}, EDITS),
        ({"type": "memory_20250818", "name": "memory", "defer_loading": True}, EDITS | {"old_path", "new_path"}),
    ],
)
def test_a_tool_of_the_client_is_a_function(tool: Any, fields: set[str]) -> None:
    chosen = {"type": "tool", "name": tool["name"]}
    body = {"messages": USER, "max_tokens": 5, "tools": [*TOOLS, tool], "tool_choice": chosen}
    (function,) = MessagesBody.model_validate(body).chat().calls.functions
    assert (function.name, function.strict) == (tool["name"], tool.get("strict"))
    assert function.parameters is not None
    assert function.parameters["properties"].keys() == fields
    with running(max_model_len=4096) as live:
        assert live.post(PATH, body).status_code == 200


@pytest.mark.parametrize("defer", [True, False, None])
def test_a_tool_that_may_be_loaded_late_is_offered(defer: bool | None) -> None:
    tools = [TOOLS[0] | {"defer_loading": defer}]
    chat = MessagesBody.model_validate({"messages": USER, "max_tokens": 5, "tools": tools}).chat()
    assert [function.name for function in chat.calls.functions] == ["weather"]


def test_a_last_message_of_the_assistant_is_continued(live: Live) -> None:
    reply = say(live, messages=[*USER, {"role": "assistant", "content": "so"}])
    assert reply["content"][0]["text"] == answer("u:hi;a:so", 5)
    counted = live.post(f"{PATH}/count_tokens", {"messages": [*USER, {"role": "assistant", "content": "so"}]})
    assert counted.json() == {"input_tokens": len("u:hi;a:so")}


@pytest.mark.parametrize(
    "field",
    [
        {"inference_geo": "global"},
        {"user_profile_id": "uprof_1"},
        {"workspace_id": "wrkspc_1"},
        {"diagnostics": {"previous_message_id": None}},
        *({name: None} for name in ("inference_geo", "user_profile_id", "workspace_id", "diagnostics")),
    ],
)
def test_fields_of_anthropics_cloud_change_no_answer(live: Live, field: Any) -> None:
    assert say(live, **field)["content"] == say(live)["content"]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"source": PLAIN}, "<document>\n<document_content>\nwords\n</document_content>\n</document>\n"),
        (
            {"source": {"type": "content", "content": [{"type": "text", "text": "words"}]}, "title": "t"},
            "<document>\n<title>t</title>\n<document_content>\nwords\n</document_content>\n</document>\n",
        ),
        (
            {"source": {"type": "content", "content": "words"}, "context": "c", "citations": {"enabled": False}},
            "<document>\n<context>c</context>\n<document_content>\nwords\n</document_content>\n</document>\n",
        ),
    ],
)
def test_a_document_of_text_is_part_of_the_prompt(block: Any, text: str) -> None:
    document = {"type": "document", **block}
    ask = {"type": "text", "text": "What is it?"}
    results = [RESULT | {"content": [document]}]
    called = [*USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": results}]
    for messages in ([{"role": "user", "content": [document, ask]}], called):
        chat = MessagesBody.model_validate({"messages": messages, "max_tokens": 5, "tools": TOOLS}).chat()
        assert chat.messages[-1]["content"] == text + ("What is it?" if len(messages) == 1 else "")


def test_stop_reasons(live: Live) -> None:
    whole = answer("u:hi;a:", 20)
    reply = say(live, max_tokens=50, stop_sequences=["never~", whole[5:8]])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", whole[5:8])
    assert reply["content"][0]["text"] == whole[:5]
    events = live.events(PATH, {"messages": USER, "max_tokens": 50, "stop_sequences": [whole[5:8]]})
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": whole[5:8]}
    word = next(word for word in map(str, range(200)) if ends(word))
    ended = say(live, max_tokens=200, temperature=0, messages=[{"role": "user", "content": word}])
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)


def ends(word: str) -> bool:
    """Whether the fake model's greedy answer reaches its end: a byte that 29 divides."""
    return any(ord(char) % 29 == 0 for char in answer(f"u:{word};a:", 200))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_tokens": None}, ["max_tokens", "null"]),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            ["messages[0].role", '"tool"', "Input should be 'user' or 'assistant'"],
        ),
        ({"messages": [SYSTEM]}, ["messages", "only messages of role system"]),
        ({"messages": [SYSTEM | {"content": [RESULT]}, *USER]}, ["messages[0]", "system", "tool_result"]),
        ({"messages": [SYSTEM | {"content": [IMAGE]}, *USER]}, ["messages[0]", "system", "image"]),
        ({"tools": [TOOLS[0] | {"defer_loading": "yes"}]}, ["tools[0].defer_loading", "boolean", '"yes"']),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": PDF}]}]},
            ['content[0].source.type "base64" is not supported: only "text" or "content"'],
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": PLAIN | {"media_type": "a/b"}}]}
                ]
            },
            ["source.media_type", "text/plain", '"a/b"'],
        ),
        (
            {"messages": [{"role": "user", "content": [DOCUMENT | {"citations": {"enabled": True}}]}]},
            ["content[0]", "citations", "true"],
        ),
        ({"messages": [{"role": "assistant", "content": [DOCUMENT]}]}, ["messages[0]", "assistant", "document"]),
        ({"messages": [SYSTEM | {"content": [DOCUMENT]}, *USER]}, ["messages[0]", "system", "document"]),
        ({"messages": [{"role": "user", "content": [CALL]}]}, ["tool_use", "user"]),
        ({"messages": [{"role": "assistant", "content": [RESULT]}, *USER]}, ["tool_result", "assistant"]),
        ({"tools": [{"name": "f"}]}, ["tools[0].input_schema", "required"]),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, ["tools[0].name", '"a b"']),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ["tools[0].type", "web_search"]),
        ({"tools": [{"type": "bash_20250124", "name": "sh"}]}, ["tools[0].name", '"bash"', '"sh"']),
        ({"tools": [{"type": "bash_20250124", "name": "memory"}]}, ["tools[0].name", '"bash"', "bash_20250124"]),
        ({"tools": [{"type": "memory_20250818"}]}, ["tools[0].name is required"]),
        (
            {"tools": [{"type": "text_editor_20250728", "name": EDITOR, "max_characters": 0}]},
            ["tools[0].max_characters", "1", "0"],
        ),
        (
            {"tools": [{"type": "text_editor_20250429", "name": EDITOR, "max_characters": 9}]},
            ["tools[0].max_characters", "text_editor_20250728", "text_editor_20250429"],
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]},
            ["tools[0]", "unknown field 'input_schema'"],
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "any", "name": "f"}}, ["tool_choice", "name"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, ["budget_tokens", "less than max_tokens (5)"]),
        ({"thinking": {"type": "enabled"}}, ["thinking.budget_tokens is required"]),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, ["user", "thinking"]),
        ({"stop_sequences": ["x"] * 17}, ["stop_sequences", "16"]),
        ({"stop_sequences": [""]}, ["stop_sequences[0]", "1"]),
        ({"metadata": {"name": "x"}}, ["metadata: unknown field 'name'"]),
        ({"output_config": {"effort": "huge"}}, ["output_config.effort", '"low"', '"huge"']),
        ({"output_config": {"format": {"type": "json_schema"}}}, ["output_config.format.schema", "required"]),
        ({"n": 2}, ["unknown field 'n'"]),
        ({"inference_geo": "us"}, ["inference_geo", '"global"', '"us"']),
        ({"user_profile_id": 1}, ["user_profile_id", "string", "1"]),
        ({"workspace_id": []}, ["workspace_id", "string", "[]"]),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, ["diagnostics", "previous_message_id", "msg_1"]),
        ({"tools": [TOOLS[0] | {"input_examples": [{}]}]}, ["tools[0]", "input_examples", "[{}]"]),
        (
            {"messages": [{"role": "user", "content": [RESULT | {"content": [REFERENCE]}]}]},
            ["content[0].type", '"tool_reference"', "not supported"],
        ),
    ],
)
def test_refusals_in_their_shape(live: Live, body: dict[str, Any], words: list[str]) -> None:
    response = live.post(PATH, {"messages": USER, "max_tokens": 5, "metadata": {"user_id": "u"}, **body})
    assert response.status_code == 400
    refusal = response.json()
    assert set(refusal) == {"type", "error"}
    assert (refusal["type"], refusal["error"]["type"]) == ("error", "invalid_request_error")
    assert all(word in refusal["error"]["message"] for word in words), refusal


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", PATH, {"messages": USER, "max_tokens": 5, "model": "other"}, 404, "not_found_error"),
        ("GET", PATH, None, 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", {}, 404, "not_found_error"),
        ("POST", f"{PATH}/count_tokens", {}, 400, "invalid_request_error"),
    ],
)
def test_other_errors(live: Live, method: str, path: str, body: Any, status: int, kind: str) -> None:
    response = live.http.request(method, path, json=body)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind


def test_a_key_goes_into_either_header_here_but_not_elsewhere() -> None:
    with running(api_keys=("right",)) as live:
        body = {"messages": USER, "max_tokens": 1}
        for headers in ({"x-api-key": "right"}, {"authorization": "Bearer right", "x-api-key": "none"}):
            assert live.post(PATH, body, headers=headers).status_code == 200
        refused = live.post(PATH, body, headers={"x-api-key": "wrong"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert live.http.get("/v1/models", headers={"x-api-key": "right"}).status_code == 200
        assert live.http.get("/v1/models/fake", headers={"x-api-key": "right"}).status_code == 200
        assert live.http.get("/v1/models", headers={"x-api-key": "wrong"}).status_code == 401
        assert live.http.get("/version", headers={"x-api-key": "right"}).status_code == 401


def test_calls_and_results_are_chats_messages() -> None:
    failed = {"type": "tool_result", "tool_use_id": "call_2", "content": "no", "is_error": True}
    messages = [
        *USER,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, CALL, CALL | {"id": "call_2"}]},
        {"role": "user", "content": [RESULT, failed, {"type": "text", "text": "and?"}]},
        {"role": "assistant", "content": [CALL | {"id": "call_3"}]},
        {"role": "user", "content": [RESULT | {"tool_use_id": "call_3", "content": None}]},
    ]
    chat = MessagesBody.model_validate({"messages": messages, "max_tokens": 5, "tools": TOOLS}).chat()
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "a"}}}
    assert chat.messages == [
        *USER,
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [call | {"id": "call_1"}, call | {"id": "call_2"}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: no"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "", "tool_calls": [call | {"id": "call_3"}]},
        {"role": "tool", "tool_call_id": "call_3", "content": ""},
    ]


def built(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that a client makes of a message's events."""
    blocks: list[dict[str, Any]] = []
    parts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            parts.clear()
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            parts.append(event["delta"].get("text") or event["delta"]["partial_json"])
        elif event["type"] == "content_block_stop":
            text = "".join(parts)
            blocks[-1] |= {"text": text} if blocks[-1]["type"] == "text" else {"input": json.loads(text)}
    return blocks


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_calls_become_blocks(style: str, size: int) -> None:
    whole, text = TEXTS[style]
    shape = MessageShape(RECORD, AllowedCalls(), blocks=CallReader(STYLES[style]))
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    events = [event for part in parts for event in shape.chunks(0, Delta(part), Usage())]
    events += shape.chunks(0, Delta(finish="stop"), Usage())
    blocks = built(events)
    assert [block["text"] for block in blocks if block["type"] == "text"] == ([text] if text else [])
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [(call["name"], call["input"]) for call in calls] == [("weather", json.loads(ARGUMENTS)), ("time.now", {})]
    assert len({call["id"] for call in calls} - {None}) == 2
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    reply = MessageShape(RECORD, AllowedCalls(), blocks=CallReader(STYLES[style])).whole(
        [Delta(whole, finish="stop")], Usage(), NO_TIME
    )
    ids = {"id": None}
    assert [block | ids for block in reply["content"]] == [block | ids for block in blocks]


def test_a_thread_is_refused_so_that_the_tool_runner_goes_on_without(live: Live) -> None:
    body = {"messages": USER, "max_tokens": 3, "thread": {"type": "create"}}
    response = live.post(PATH, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert live.post(PATH, body | {"thread": None}).status_code == 200
    last = {"role": "assistant", "content": [{"type": "text", "text": "so"}, CALL]}
    response = live.post(PATH, {"messages": [*USER, last], "max_tokens": 3})
    assert response.status_code == 400
    assert "calls functions" in response.json()["error"]["message"]
