"""The cases of openresponses' compliance tests, with the fields that its specification requires of a response.

Those of hosted tools, which it skips without their services, and of a PDF, which is refused here, are left out. Images
are in tests/e2e/test_image_apis.py: the fake model sees none.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response

from tests.service.live import Live, running

PATH = "/v1/responses"
REQUIRED = frozenset(
    [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
        "instructions",
        "output",
        "error",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "user",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ]
)
PLACE = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": PLACE}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "SF"}}\n</tool_call>'


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A model that repeats the last message, and ends."""
    with running(model="recite", max_model_len=4096) as server:
        yield server


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def checked(response: dict[str, Any]) -> dict[str, Any]:
    assert response.keys() >= REQUIRED
    Response.model_validate(response)
    assert response["status"] == "completed"
    assert response["output"]
    return response


def answered(live: Live, **body: Any) -> dict[str, Any]:
    reply = live.post(PATH, {"model": "fake", "stream": False, **body})
    assert reply.status_code == 200, reply.text
    return checked(reply.json())


def said(response: dict[str, Any]) -> str:
    return response["output"][-1]["content"][0]["text"]


def test_basic_response(live: Live) -> None:
    assert said(answered(live, input=[message("user", "Say hello.")])) == "Say hello."


def test_streaming_response(live: Live) -> None:
    events = live.events(PATH, {"model": "fake", "input": [message("user", "Count to 5.")]})
    assert events[-1]["type"] == "response.completed"
    assert said(checked(events[-1]["response"])) == "Count to 5."


def test_system_prompt(live: Live) -> None:
    assert said(answered(live, input=[message("system", "A pirate."), message("user", "Say hello.")])) == "Say hello."


def test_tool_calling(live: Live) -> None:
    (call,) = answered(live, input=[message("user", CALL)], tools=[WEATHER])["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")


def test_tool_calling_as_a_stream(live: Live) -> None:
    events = live.events(PATH, {"model": "fake", "input": [message("user", CALL)], "tools": [WEATHER]})
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert {"function_call_arguments.delta", "function_call_arguments.done"} <= {*kinds}
    for kind in ("output_item.added", "output_item.done"):
        assert events[kinds.index(kind)]["item"]["type"] == "function_call"


def test_multi_turn(live: Live) -> None:
    turns = [message("user", "My name is Alice."), message("assistant", "Hello."), message("user", "What is it?")]
    assert said(answered(live, input=turns)) == "What is it?"


def test_previous_response_id(live: Live) -> None:
    first = answered(live, input="Remember: papaya.")
    second = answered(live, input="Which word?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]


def test_function_call_round_trip(live: Live) -> None:
    (call,) = answered(live, input=CALL, tools=[WEATHER])["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"temperature": 18}'}
    answered(live, input=[message("user", "How is it?"), call, result], tools=[WEATHER])
