"""Mistral's own package for Python: its users see the objects that it parses."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mistralai.client import Mistral
from mistralai.client.errors import SDKError

from tests.agents.proxy import Record

MODEL = "smollm2-135m-instruct"
ASK = [{"role": "user", "content": "Count from one to ten in words."}]
CITY = {"type": "string", "enum": ["Paris"]}
SCHEMA = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": SCHEMA}}]


@pytest.fixture
def client(record: Record) -> Iterator[Mistral]:
    with Mistral(api_key="none", server_url=record.url) as client:
        yield client


def ask(client: Mistral, **fields: Any) -> Any:
    return client.chat.complete(**{"model": MODEL, "messages": ASK, "max_tokens": 12, "temperature": 0, **fields})


def test_an_answer_and_a_second_turn(client: Mistral, record: Record) -> None:
    """What was received is sent back: `prefix` is false in it."""
    first = ask(client)
    message = first.choices[0].message
    assert message.content
    assert first.usage.completion_tokens == 12
    again = ask(client, messages=[*ASK, message, {"role": "user", "content": "Go on."}])
    assert again.choices[0].message.content
    assert record.exchanges[-1].sent["messages"][1]["prefix"] is False


def test_a_stream_says_the_same(client: Mistral) -> None:
    whole = ask(client).choices[0].message.content
    with client.chat.stream(model=MODEL, messages=ASK, max_tokens=12, temperature=0) as stream:
        chunks = [event.data for event in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole


def test_an_answer_that_was_begun_goes_on(client: Mistral) -> None:
    """With `prefix: true` the answer continues the last message, as it was on the way to it."""
    whole = ask(client).choices[0].message.content
    begun = whole[: len(whole) // 2].rstrip()
    rest = ask(client, messages=[*ASK, {"role": "assistant", "content": begun, "prefix": True}])
    text = rest.choices[0].message.content.removeprefix(begun)
    assert (begun + text).startswith(whole[: len(begun) + 3])


def test_a_seed_repeats_an_answer(client: Mistral) -> None:
    fields: dict[str, Any] = {"temperature": 1.5, "max_tokens": 16}
    said = [ask(client, random_seed=seed, **fields).choices[0].message.content for seed in (7, 7, 8)]
    assert said[0] == said[1] != said[2]


def test_a_tool_is_called_and_answers(client: Mistral) -> None:
    """`tool_choice: "any"` forces a call. Its result goes back with the name of the tool."""
    first = ask(client, tools=TOOLS, tool_choice="any", parallel_tool_calls=False, max_tokens=60)
    message = first.choices[0].message
    (call,) = message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    result = {"role": "tool", "name": "weather", "tool_call_id": call.id, "content": "It is sunny."}
    again = ask(client, messages=[*ASK, message, result], tools=TOOLS, tool_choice="none")
    assert again.choices[0].message.content


def test_a_tool_is_called_in_a_stream(client: Mistral) -> None:
    """The package demands a name in each piece of a call."""
    asked = {"messages": ASK, "tools": TOOLS, "tool_choice": "any", "parallel_tool_calls": False, "max_tokens": 60}
    with client.chat.stream(model=MODEL, temperature=0, **asked) as stream:
        deltas = [event.data.choices[0].delta for event in stream]
    functions = [call.function for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(function.name for function in functions) == "weather"
    assert json.loads("".join(function.arguments for function in functions)) == {"city": "Paris"}


def test_arguments_may_be_an_object_and_a_result_may_be_empty(client: Mistral) -> None:
    function = {"name": "weather", "arguments": {"city": "Paris"}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "a1b2c3d4e", "function": function}]}
    result = {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": None}
    assert ask(client, messages=[*ASK, call, result], tools=TOOLS).choices[0].message.content


@pytest.mark.parametrize(
    "fields",
    [
        {"safe_prompt": False},
        {"random_seed": None},
        {"guardrails": []},
        {"prompt_mode": None},
        {"metadata": {"session": "a"}},
        {"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": ["\n\n"]},
        {"response_format": {"type": "text"}},
        {"reasoning_effort": "none"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_field_that_its_users_set_passes(client: Mistral, fields: dict[str, Any]) -> None:
    assert ask(client, **fields).choices[0].message.content


def test_thoughts_that_were_received_can_be_sent_back(client: Mistral) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Easy."}], "signature": "abc"}
    message = {"role": "assistant", "content": [thought, {"type": "text", "text": "One."}]}
    assert ask(client, messages=[*ASK, message, {"role": "user", "content": "Go on."}]).choices[0].message.content


def test_the_middle_of_a_code_is_filled(client: Mistral) -> None:
    """The embedded model has no tokens for a suffix."""
    asked = {"model": MODEL, "prompt": "def one():\n", "max_tokens": 8, "temperature": 0}
    filled = client.fim.complete(**asked)
    assert filled.choices[0].message.content
    with client.fim.stream(**asked) as stream:
        events = [event.data for event in stream]
    assert "".join(event.choices[0].delta.content or "" for event in events) == filled.choices[0].message.content
    assert events[-1].usage == filled.usage
    with pytest.raises(SDKError, match="suffix needs a model"):
        client.fim.complete(**asked, suffix="\n")


def test_log_probabilities(client: Mistral) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": True, "top_prompt_logprobs": 2}
    choice = ask(client, **asked).choices[0]
    assert [len(item.top_logprobs) for item in choice.logprobs.content] == [2] * 12
    assert all(len(item.top_logprobs) == 2 for item in choice.prompt_logprobs.content)


def test_the_models_are_listed(client: Mistral) -> None:
    models = {model.id: model for model in client.models.list().data}
    assert models[MODEL].capabilities.completion_chat


def test_embeddings(client: Mistral) -> None:
    answer = client.embeddings.create(model=MODEL, inputs=["one", "two"])
    assert [len(each.embedding) for each in answer.data] == [576, 576]
