"""The anthropic package against a live server: its users see the objects that it parses."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types.beta import BetaClearToolUses20250919EditResponse
from asking import COUNT, MODEL, QUESTION, SERVER, Weather, user

ASK = {"model": MODEL, "max_tokens": 12, "messages": [user(COUNT)], "extra_body": {"temperature": 0}}


@pytest.fixture
def client() -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=SERVER, api_key="none", max_retries=0) as client:
        yield client


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK, system="You are terse.", metadata={"user_id": "u-1"})
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "max_tokens")
    assert message.content[0].type == "text"
    assert message.content[0].text
    usage = message.usage
    assert usage.output_tokens == 12
    counted = client.messages.count_tokens(model=MODEL, system="You are terse.", messages=[user(COUNT)])
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


def test_the_streaming_helper_builds_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12


def test_raw_events_and_a_stop_sequence(client: anthropic.Anthropic) -> None:
    word = client.messages.create(**ASK).content[0].text.split()[2]
    with client.messages.create(**ASK, stop_sequences=[word], stream=True) as stream:
        events = list(stream)
    delta = next(event for event in events if event.type == "message_delta")
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == ("stop_sequence", word)
    assert events[-1].type == "message_stop"


def test_what_was_received_can_be_sent_back(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**ASK)
    messages = [user(COUNT), {"role": "assistant", "content": first.content}, user("Go on.")]
    assert client.messages.create(**{**ASK, "messages": messages}).content[0].text


def test_an_answer_may_be_begun(client: anthropic.Anthropic) -> None:
    """The last message is the assistant's, and the answer continues it."""
    whole = client.messages.create(**ASK).content[0].text
    begun = {"role": "assistant", "content": whole[: len(whole) // 2].rstrip()}
    rest = client.messages.create(**{**ASK, "messages": [user(COUNT), begun]})
    assert whole.startswith(begun["content"] + rest.content[0].text[:3])


def test_an_answer_of_a_schema(client: anthropic.Anthropic) -> None:
    """As it is: the package's own helper leaves out limits of numbers."""
    schema = Weather.model_json_schema() | {"additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**{**ASK, "max_tokens": 60}, output_config=config)
    assert message.stop_reason == "end_turn"
    Weather.model_validate_json(message.content[0].text)


def test_a_tool_is_called_and_answers(client: anthropic.Anthropic) -> None:
    schema = Weather.model_json_schema()
    tools = [{"name": "weather", "description": "Tells the weather of a city.", "input_schema": schema}]
    request = {**ASK, "max_tokens": 80, "tools": tools, "messages": [user(QUESTION)]}
    forced = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    first = client.messages.create(**request, **forced)
    assert first.stop_reason == "tool_use"
    (call,) = first.content
    assert (call.type, call.name) == ("tool_use", "weather")
    Weather.model_validate(call.input)
    with client.messages.stream(**request, **forced) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny, 21 degrees."}
    messages = [user(QUESTION), {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(**{**request, "messages": messages}, tool_choice={"type": "none"})
    assert again.content[0].text


def test_the_tool_runner_goes_on_without_a_thread(client: anthropic.Anthropic) -> None:
    cities = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        return "It is sunny."

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        tools=[weather],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        messages=[user(QUESTION)],
        max_iterations=2,
    )
    assert len(list(runner)) == 2
    assert cities


def test_a_tool_that_the_client_runs_is_called(client: anthropic.Anthropic) -> None:
    tools = [{"type": "bash_20250124", "name": "bash"}]
    message = client.messages.create(
        **{**ASK, "max_tokens": 60}, tools=tools, tool_choice={"type": "tool", "name": "bash"}
    )
    (call,) = message.content
    assert call.name == "bash"
    assert set(call.input) <= {"command", "restart"}


def test_an_old_result_is_cleared(client: anthropic.Anthropic) -> None:
    """The report, whole and in a stream, and the count have the package's own types."""
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny " * 50}
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 0},
        "keep": {"type": "tool_uses", "value": 0},
    }
    request = {
        "model": MODEL,
        "messages": [user(QUESTION), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}],
        "context_management": {"edits": [edit]},
    }
    counted = client.beta.messages.count_tokens(**request)
    message = client.beta.messages.create(**request, max_tokens=5)
    (applied,) = message.context_management.applied_edits
    assert isinstance(applied, BetaClearToolUses20250919EditResponse)
    assert applied.cleared_tool_uses == 1
    saved = counted.context_management.original_input_tokens - counted.input_tokens
    assert applied.cleared_input_tokens == saved > 0
    with client.beta.messages.stream(**request, max_tokens=5) as stream:
        assert stream.get_final_message().context_management == message.context_management


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**ASK, "max_tokens": 20_000})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASK, "model": "claude"})
