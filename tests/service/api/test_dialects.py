"""The three chat APIs make one internal request, and each reports errors with its own field names."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from service.api.anthropic.messages import MessagesBody
from service.api.openai.chat import ChatBody
from service.api.prompt import Chat
from service.api.responses.routes import ResponsesBody
from service.schema.options import Names
from tests.service.live import Live, running

Json = dict[str, Any]
USER = [{"role": "user", "content": "hi"}]
OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}}
LARGE = {"enum": ["x" * 1000] * 200}
NAN = {"a": float("nan")}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
LEAST = {"chat": {"messages": USER}, "responses": {"input": "hi"}, "messages": {"messages": USER, "max_tokens": 5}}


def tools(dialect: str, parameters: Json = OBJECT, **about: Any) -> Json:
    """A function that may be called."""
    if dialect == "messages":
        return {"tools": [{"name": "weather", "input_schema": parameters, **about}]}
    function = {"name": "weather", "parameters": parameters, **about}
    nested = {"type": "function", "function": function}
    return {"tools": [nested if dialect == "chat" else {"type": "function", **function}]}


def must_be(dialect: str, schema: Json) -> Json:
    """Structured output."""
    return {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        "responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }[dialect]


def calls(dialect: str, n: int, arguments: Json) -> Json:
    """A conversation whose assistant has called `n` functions in one message."""
    text, user = json.dumps(arguments), [{"role": "user", "content": "hi"}]
    call = {"id": "a", "function": {"name": "weather", "arguments": text}}
    item = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": text}
    block = {"type": "tool_use", "id": "a", "name": "weather", "input": arguments}
    return {
        "chat": {"messages": [*user, {"role": "assistant", "tool_calls": [call] * n}, *user]},
        "responses": {"input": [*user, *[item] * n, *user]},
        "messages": {"messages": [*user, {"role": "assistant", "content": [block] * n}, *user]},
    }[dialect]


class Case(NamedTuple):
    """What is wrong with a request in each dialect: the body, the field that is blamed, words of the message."""

    bodies: Mapping[str, Json]
    fields: Mapping[str, str]
    words: Sequence[str]


def case(chat: Json, responses: Json, messages: Json, fields: str | list[str], *words: str) -> Case:
    names = [fields] * 3 if isinstance(fields, str) else fields
    bodies = zip(PATHS, (chat, responses, messages), strict=True)
    return Case(dict(bodies), dict(zip(PATHS, names, strict=True)), words)


def of_each(make: Callable[..., Json], *arguments: Any, fields: str | list[str], words: str, **options: Any) -> Case:
    chat, responses, messages = (make(dialect, *arguments, **options) for dialect in PATHS)
    return case(chat, responses, messages, fields, *words.split())


TEXTS = ["messages", "input", "messages"]
FORMATS = ["response_format", "text.format", "output_config.format"]
NO_JSON = ["response_format", "text.format.schema", "output_config.format"]
LIMITS = ["max_tokens", "max_output_tokens", "max_tokens"]
OTHERS = {
    "chat": {"text.format", "output_config", "max_output_tokens"},
    "responses": {"response_format", "output_config", "max_tokens"},
    "messages": {"response_format", "text.format", "max_output_tokens"},
}
"""Features without a field in a dialect."""
LONG = [{"role": "user", "content": "x" * 600}]
TOO_LONG = [{"role": "user", "content": "x" * 9000}]
MANY = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}] * 8192 + USER
CASES = {
    "no messages": case({"messages": []}, {"input": []}, {"messages": []}, TEXTS, "empty"),
    "many messages": case(
        {"messages": MANY},
        {"input": MANY[1:], "instructions": "x"},
        {"messages": MANY[1:], "system": "x"},
        TEXTS,
        "16384",
    ),
    "a text that cannot fit": case({"messages": TOO_LONG}, {"input": "x" * 9000}, {"messages": TOO_LONG}, TEXTS, "512"),
    "a prompt over the context": case(
        {"messages": LONG}, {"input": "x" * 600}, {"messages": LONG}, TEXTS, "512", "605"
    ),
    "an answer over the context": case(
        {"max_tokens": 600}, {"max_output_tokens": 600}, {"max_tokens": 600}, LIMITS, "512", "600"
    ),
    "no tokens": case({"max_tokens": 0}, {"max_output_tokens": 0}, {"max_tokens": 0}, LIMITS, "1", "0"),
    "tools of one name": case(
        *({"tools": tools(dialect)["tools"] * 2} for dialect in PATHS), "tools", "two functions", "weather"
    ),
    "a choice without tools": case(
        {"tool_choice": "required"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "any"}},
        "tool_choice",
        "none",
    ),
    "a choice of another tool": case(
        tools("chat") | {"tool_choice": {"type": "function", "function": {"name": "g"}}},
        tools("responses") | {"tool_choice": {"type": "function", "name": "g"}},
        tools("messages") | {"tool_choice": {"type": "tool", "name": "g"}},
        "tool_choice",
        '"g"',
    ),
    "parameters of no object": of_each(tools, {"type": "array"}, strict=True, fields="tools", words="array weather"),
    "x-guidance in parameters": of_each(tools, {"x-guidance": 1}, strict=True, fields="tools", words="x-guidance"),
    "parameters beyond grammars": of_each(tools, {"not": {}}, strict=True, fields="tools", words="enforced not"),
    "parameters too large": of_each(
        tools, {"properties": {"a": LARGE}}, strict=True, fields="tools", words="131072 20"
    ),
    "a large description": of_each(tools, description="x" * 9000, fields=["tools", "tools", "messages"], words="512"),
    "a schema beyond grammars": of_each(must_be, {"type": "strin"}, fields=FORMATS, words="enforced strin"),
    "x-guidance in a schema": of_each(must_be, {"x-guidance": 1}, fields=FORMATS, words="x-guidance 1"),
    "a schema too large": of_each(must_be, LARGE, fields=FORMATS, words="131072 200"),
    "a schema that is no JSON": of_each(must_be, {"const": float("nan")}, fields=NO_JSON, words="not JSON"),
    "many calls in a message": of_each(
        calls, 129, {}, fields=["messages[1].tool_calls", "input", "messages"], words="128 129"
    ),
    "arguments that are no JSON": of_each(
        calls,
        1,
        NAN,
        fields=["messages[1].tool_calls[0].function.arguments", "input[1].arguments", "messages"],
        words="JSON",
    ),
    "a temperature": case(*[{"temperature": 3}] * 3, "temperature", "3", "2"),
}


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_an_error_names_the_clients_own_field(live: Live, name: str, dialect: str) -> None:
    case = CASES[name]
    content = json.dumps(LEAST[dialect] | case.bodies[dialect])
    response = live.http.post(PATHS[dialect], content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    field = case.fields[dialect]
    assert dialect == "messages" or error["param"] == field
    words = case.words if field in TEXTS else [field, *case.words]
    assert all(word in error["message"] for word in words), error
    assert not [name for name in OTHERS[dialect] if name in error["message"]], error


def test_a_model_without_a_chat_format_is_reported_in_the_clients_words() -> None:
    with running(chat=False) as live:
        params = [live.post(path, LEAST[dialect]).json()["error"].get("param") for dialect, path in PATHS.items()]
    assert params == ["messages", "input", None]


def test_the_token_limit_has_the_name_that_was_used(live: Live) -> None:
    response = live.post(PATHS["chat"], {"messages": USER, "max_completion_tokens": 600})
    assert response.json()["error"]["param"] == "max_completion_tokens"


def test_a_grammar_of_tools_and_structured_output_names_both(live: Live) -> None:
    body = LEAST["chat"] | tools("chat") | must_be("chat", {"$ref": "#/nowhere"})
    error = live.post(PATHS["chat"], body).json()["error"]
    assert error["param"] == "tools"
    assert error["message"].startswith("tools and response_format cannot be enforced: ")


# The same conversation is the same request


def requests(chat: Json, responses: Json, messages: Json) -> Iterator[Chat]:
    """The internal request of each dialect, with chat's names of the fields."""
    bodies = (
        ChatBody.model_validate_json(json.dumps(chat)),
        ResponsesBody.model_validate_json(json.dumps(responses)),
        MessagesBody.model_validate_json(json.dumps({"max_tokens": 7, **messages})),
    )
    for body in bodies:
        body.check()
        request = body.chat()
        if request.constraint is not None:
            request = replace(request, constraint=request.constraint._replace(fields=("response_format",)))
        yield replace(request, names=Names())


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
SAMPLING = {"temperature": 0.5, "top_p": 0.9}
PARTS = ["two ", "parts"]
LATE = [
    {"role": role, "content": f"{role} {n}"} for n, role in enumerate(("user", "assistant", "system", "user", "system"))
]
LATE_BLOCK = {"type": "text", "text": LATE[2]["content"], "cache_control": {"type": "ephemeral"}}
SAME: dict[str, tuple[Json, Json, Json]] = {
    "text": ({"messages": USER}, {"input": "hi"}, {"messages": USER}),
    "system, sampling": (
        {"messages": [{"role": "system", "content": "Be brief."}, *USER], **SAMPLING},
        {"instructions": "Be brief.", "input": USER, **SAMPLING},
        {"system": "Be brief.", "messages": USER, **SAMPLING},
    ),
    "late instructions": (
        {"messages": LATE},
        {"input": LATE},
        {"messages": [*LATE[:2], {"role": "system", "content": [LATE_BLOCK]}, *LATE[3:]]},
    ),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": part} for part in PARTS]}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": part} for part in PARTS]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": part} for part in PARTS]}]},
    ),
    "calls and results": (
        {
            "messages": [
                *USER,
                {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            ],
            **tools("chat", strict=True, description="Tells it."),
        },
        {
            "input": [
                *USER,
                {"role": "assistant", "content": "Let me see."},
                {"type": "function_call", "call_id": "call_1", **CALL["function"]},  # type: ignore[dict-item]
                {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
            ],
            **tools("responses", strict=True, description="Tells it."),
        },
        {
            "messages": [
                *USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}]},
            ],
            **tools("messages", strict=True, description="Tells it."),
        },
    ),
    "a forced tool": (
        {**LEAST["chat"], **tools("chat"), "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {**LEAST["responses"], **tools("responses"), "tool_choice": {"type": "function", "name": "weather"}},
        {**LEAST["messages"], **tools("messages"), "tool_choice": {"type": "tool", "name": "weather"}},
    ),
    "any tool, one call": (
        {**LEAST["chat"], **tools("chat"), "tool_choice": "required", "parallel_tool_calls": False},
        {**LEAST["responses"], **tools("responses"), "tool_choice": "required", "parallel_tool_calls": False},
        {
            **LEAST["messages"],
            **tools("messages"),
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
    ),
    "some tools": (
        {
            **LEAST["chat"],
            **tools("chat"),
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
        },
        {
            **LEAST["responses"],
            **tools("responses"),
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "weather"}],
            },
        },
        {**LEAST["messages"], **tools("messages"), "tool_choice": {"type": "any"}},
    ),
    "no tool": (
        {**LEAST["chat"], **tools("chat"), "tool_choice": "none"},
        {**LEAST["responses"], **tools("responses"), "tool_choice": "none"},
        {**LEAST["messages"], **tools("messages"), "tool_choice": {"type": "none"}},
    ),
    "structured output": tuple(LEAST[dialect] | must_be(dialect, OBJECT) for dialect in PATHS),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", SAME)
def test_one_conversation_is_one_request_in_every_dialect(name: str) -> None:
    chat, responses, messages = SAME[name]
    first, second, third = requests(
        chat | {"max_tokens": 7}, responses | {"max_output_tokens": 7}, messages | {"max_tokens": 7}
    )
    assert first == second
    assert first == third


def test_a_stop_sequence_and_a_continued_answer_are_chats() -> None:
    messages = [*USER, {"role": "assistant", "content": "so"}]
    chat = ChatBody.model_validate({"messages": messages, "continue_final_message": True, "stop": ["x"], "top_k": 3})
    theirs = MessagesBody.model_validate({"messages": messages, "max_tokens": 5, "stop_sequences": ["x"], "top_k": 3})
    first, second = chat.chat(), theirs.chat()
    assert first.options.sampling == second.options.sampling == {"top_k": 3}
    assert first.options.stops == second.options.stops == ("x",)
    assert replace(first, max_tokens=5, names=Names()) == second
