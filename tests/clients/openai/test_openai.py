"""The openai package against a live server: its users see the objects that it parses."""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import openai
import pytest
from asking import BASE, COUNT, MODEL, QUESTION, user
from pydantic import BaseModel, Field

ASK: dict[str, Any] = {"model": MODEL, "messages": [user(COUNT)], "max_tokens": 12, "temperature": 0}
LONG: dict[str, Any] = {**ASK, "max_tokens": 100, "messages": [user(QUESTION)]}
INPUT: dict[str, Any] = {"model": MODEL, "input": COUNT, "max_output_tokens": 16, "temperature": 0}


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=20)
    unit: Unit
    days: int | None = Field(ge=1, le=9)


class Now(BaseModel):
    """Tells the time."""


WEATHER: Any = openai.pydantic_function_tool(Weather)
NOW: Any = openai.pydantic_function_tool(Now, name="now")


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=BASE, api_key="none", max_retries=0) as client:
        yield client


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK)
    assert whole.choices[0].finish_reason == "length"
    with client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_completions_in_every_shape_of_prompt(client: openai.OpenAI) -> None:
    request = {"model": MODEL, "max_tokens": 4, "temperature": 0, "logprobs": 2}
    text = "One, two, three,"
    choice = client.completions.create(**request, prompt=text).choices[0]
    assert len(choice.logprobs.tokens) == 4
    assert "".join(choice.logprobs.tokens) == choice.text
    both = client.completions.create(**request, prompt=[text, text], echo=True).choices
    assert [(other.index, other.text) for other in both] == [(0, text + choice.text), (1, text + choice.text)]
    with client.completions.create(**request, prompt=text, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == choice.text


def test_the_parse_helper_gives_an_object(client: openai.OpenAI) -> None:
    completion = client.chat.completions.parse(**LONG, response_format=Weather)
    assert completion.choices[0].finish_reason == "stop"
    assert isinstance(completion.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(**LONG, response_format=Weather) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert streamed == completion.choices[0].message.parsed


def test_tools_parsed(client: openai.OpenAI) -> None:
    request = {**LONG, "tools": [WEATHER, NOW]}
    for choice in ("required", {"type": "function", "function": {"name": "Weather"}}):
        answer = client.chat.completions.parse(**request, tool_choice=choice, parallel_tool_calls=False).choices[0]
        (call,) = answer.message.tool_calls
        assert answer.finish_reason == "tool_calls"
        assert isinstance(call.function.parsed_arguments, {"Weather": Weather, "now": Now}[call.function.name])
    with client.chat.completions.stream(**request, tool_choice=choice) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments == done[0].parsed_arguments
    assert client.chat.completions.create(**request, tool_choice="none").choices[0].message.tool_calls is None


def test_what_was_received_goes_back(client: openai.OpenAI) -> None:
    """Users of the SDK send the object itself, or its dump with all nulls. Both give the same answer."""
    request = {**LONG, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    called = client.chat.completions.create(**request).choices[0].message
    parsed = client.chat.completions.parse(**request).choices[0].message
    answers = []
    for sent, calls in (
        (called, called.tool_calls),
        (called.model_dump(), called.tool_calls),
        (parsed, parsed.tool_calls),
        (client.chat.completions.parse(**LONG, response_format=Weather).choices[0].message, ()),
    ):
        results = [{"role": "tool", "tool_call_id": call.id, "content": "Dry."} for call in calls]
        history = [*LONG["messages"], sent, *results, user("Go on.")]
        answers.append(client.chat.completions.create(**{**LONG, "messages": history}).choices[0].message.content)
    assert all(answers)
    assert answers[0] == answers[1]
    tool = {"type": "function", **WEATHER["function"]}
    first = client.responses.parse(
        **INPUT | {"max_output_tokens": 100}, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Dry."}
    for sent in (call, call.model_dump()):
        assert client.responses.create(**INPUT | {"input": [user(COUNT), sent, result]}).output_text


def test_responses_whole_streamed_and_continued(client: openai.OpenAI) -> None:
    whole = client.responses.create(**INPUT, instructions="You are terse.")
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 16
    with client.responses.stream(**INPUT, instructions="You are terse.") as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.incomplete"
    assert text == whole.output_text == events[-1].response.output_text
    items = [user(COUNT), *whole.output, user("Go on.")]
    assert client.responses.create(**INPUT | {"input": items}).output_text


def test_responses_with_state(client: openai.OpenAI) -> None:
    """The prompt of the second request begins as the first one's: the engine has its pages."""
    first = client.responses.create(**INPUT)
    second = client.responses.create(**INPUT | {"input": "Go on."}, previous_response_id=first.id)
    whole = client.responses.create(**INPUT | {"input": [user(COUNT), *first.output, user("Go on.")]})
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(first.id).output_text == first.output_text
    conversation = client.conversations.create(items=[user(COUNT), *first.output])
    third = client.responses.create(**INPUT | {"input": "Go on."}, conversation=conversation.id)
    assert third.output_text == whole.output_text
    assert len(list(client.conversations.items.list(conversation.id))) == 4
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_responses_in_the_background(client: openai.OpenAI) -> None:
    whole = client.responses.create(**INPUT)
    with client.responses.create(**INPUT, background=True, stream=True) as stream:
        begun = [event for event, _ in zip(stream, range(3), strict=False)]
    id = begun[0].response.id
    with client.responses.retrieve(id, stream=True, starting_after=begun[-1].sequence_number) as stream:
        events = [*begun, *stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == client.responses.retrieve(id).output_text
    assert client.responses.cancel(id).status == "incomplete"


def test_responses_parsed(client: openai.OpenAI) -> None:
    request = {**INPUT, "input": QUESTION, "max_output_tokens": 100}
    whole = client.responses.parse(**request, text_format=Weather)
    assert isinstance(whole.output_parsed, Weather)
    with client.responses.stream(**request, text_format=Weather) as stream:
        assert stream.get_final_response().output_parsed == whole.output_parsed


def test_embeddings_as_the_sdk_asks_for_them(client: openai.OpenAI) -> None:
    """The package requests base64 by default."""
    request = {"model": MODEL, "input": ["One.", "Another text."]}
    numbers = [item.embedding for item in client.embeddings.create(**request, encoding_format="float").data]
    for coded, plain in zip(client.embeddings.create(**request).data, numbers, strict=True):
        assert coded.embedding == pytest.approx(plain, abs=1e-6)
        assert sum(number**2 for number in plain) == pytest.approx(1, abs=1e-3)


def test_models_headers_and_errors(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    raw = client.chat.completions.with_raw_response.create(**ASK, extra_headers={"x-request-id": "mine"})
    assert raw.headers["x-request-id"] == raw.parse()._request_id == "mine"
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.chat.completions.create(**ASK | {"temperature": 9})
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ASK | {"model": "gpt"})


def test_the_contracts_defaults_written_out_pass(client: openai.OpenAI) -> None:
    """The request has the fields of OpenAI's contract, each with its documented default."""
    defaults = {
        "frequency_penalty": 0,
        "function_call": "none",
        "logit_bias": None,
        "logprobs": False,
        "metadata": None,
        "modalities": ["text"],
        "n": 1,
        "parallel_tool_calls": True,
        "presence_penalty": 0,
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "stop": None,
        "store": False,
        "stream": False,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1,
    }
    assert client.chat.completions.create(**ASK, **defaults).choices == client.chat.completions.create(**ASK).choices
    bare = json.loads(client.chat.completions.with_raw_response.create(**ASK).text)
    assert set(bare["choices"][0]["message"]) >= {"role", "content", "refusal"}
