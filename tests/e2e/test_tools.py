"""Tools with the embedded model, whose template does not support tools, through the openai client."""

import json
import random
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.schemas import object_schema
from tests.e2e.server import MODEL, LiveServer

CITY = {"type": "string", "maxLength": 12}
WEATHER = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "Tells the time."}},
]
ASK: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "max_tokens": 80,
}


@pytest.fixture
def server(embedded: LiveServer) -> LiveServer:
    return embedded


def test_a_call_a_result_an_answer(server: LiveServer) -> None:
    choice = server.openai.chat.completions.create(
        **ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny, 21 degrees."}
    answer = server.openai.chat.completions.create(
        **ASK | {"messages": [*ASK["messages"], choice.message, result]}, temperature=0
    ).choices[0]
    assert answer.finish_reason in ("stop", "length")
    assert answer.message.content
    assert answer.message.tool_calls is None


def test_the_responses_api_calls_too(server: LiveServer) -> None:
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    user: Any = {"role": "user", "content": "What is the weather in Paris?"}
    request: Any = {"model": MODEL, "tools": tools, "max_output_tokens": 80, "temperature": 0}
    first = server.openai.responses.create(**request, input=[user], tool_choice="required", parallel_tool_calls=False)
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Paris"})
    with server.openai.responses.stream(
        **request, input=[user], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        streamed = stream.get_final_response().output[0]
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny, 21 degrees."}
    again = server.openai.responses.create(**request | {"tools": []}, input=[user, call, result])
    assert again.output_text


def test_required_never_fails_whatever_the_schema(server: LiveServer) -> None:
    """The parameters are random, the temperature is 1. Every answer that ends is a valid call."""
    schemas = {f"f{number}": object_schema(random.Random(number), 1) for number in range(8)}
    tools: Any = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in schemas.items()]
    ended = 0
    for name in schemas:
        choice: Any = {"type": "function", "function": {"name": name}}
        answer = server.openai.chat.completions.create(
            **ASK, tools=tools, tool_choice=choice, n=2, seed=3, temperature=1
        )
        for choice in answer.choices:
            (call,) = choice.message.tool_calls
            assert call.function.name == name
            if choice.finish_reason == "tool_calls":
                jsonschema.validate(json.loads(call.function.arguments), schemas[name])
                ended += 1
    assert ended > 8


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
def test_a_stream_is_the_same(server: LiveServer, tool_choice: Any) -> None:
    request = {**ASK, "tools": TOOLS, "tool_choice": tool_choice, "seed": 8, "temperature": 1}
    whole = server.openai.chat.completions.create(**request).choices[0]
    content, calls, finish = "", [], None
    for chunk in server.openai.chat.completions.create(**request, stream=True):
        delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason
        content += delta.content or ""
        for call in delta.tool_calls or ():
            if call.id:
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
    assert finish == whole.finish_reason
    assert content == (whole.message.content or "")
    assert calls == [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or ()]
    assert bool(calls) == (tool_choice == "required")


def test_the_sdks_own_reader_of_streams_finds_the_call(server: LiveServer) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    with server.openai.chat.completions.stream(**ASK, tools=TOOLS, tool_choice=choice, temperature=0) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments == {"city": "Paris"}


def test_a_schema_that_cannot_be_enforced_is_named(server: LiveServer) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}, "strict": True}}]
    with pytest.raises(openai.BadRequestError, match=r"tools cannot be enforced: .*not"):
        server.openai.chat.completions.create(**ASK, tools=tools)
