"""The ollama package against a live server: its users see the objects that it parses."""

from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from asking import COUNT, MODEL, QUESTION, SERVER, STORY, Aborted, Weather, user

ASK: dict[str, Any] = {"model": MODEL, "options": {"num_predict": 12, "temperature": 0}}
CHAT: dict[str, Any] = {**ASK, "messages": [user(COUNT)]}


@pytest.fixture
def client() -> Iterator[ollama.Client]:
    with ollama.Client(host=SERVER) as client:
        yield client


def test_models(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert (listed.model, listed.details.family, listed.details.format) == (MODEL, "llama", "gguf")
    assert listed.details.parameter_size == "134.52M"
    assert listed.size > 90_000_000
    assert listed.modified_at is not None
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.context_length, loaded.size_vram) == (MODEL, 8192, 0)
    shown = client.show(f"{MODEL}:latest")
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.capabilities == ["completion", "tools", "embedding"]
    assert "<|im_start|>" in shown.template


def test_a_chat_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat(**CHAT)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 12)
    assert whole.message.content
    assert whole.total_duration >= whole.eval_duration > 0
    *parts, last = client.chat(**CHAT, stream=True)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("length", whole.prompt_eval_count, 12)
    messages = [user(COUNT), whole.message, user("Go on.")]
    assert client.chat(**{**CHAT, "messages": messages}).message.content


def test_logprobs(client: ollama.Client) -> None:
    reply = client.chat(**CHAT, logprobs=True, top_logprobs=2)
    assert len(reply.logprobs) == 12
    assert all(item.top_logprobs[0].logprob >= item.logprob for item in reply.logprobs)


def test_an_answer_of_a_schema(client: ollama.Client) -> None:
    ask = {**CHAT, "options": {"num_predict": 60, "temperature": 0}}
    Weather.model_validate_json(client.chat(**ask, format=Weather.model_json_schema()).message.content)
    assert client.chat(**ask, format="json").message.content.startswith("{")
    Weather.model_validate_json(client.generate(MODEL, COUNT, format=Weather.model_json_schema()).response)


def weather(city: str, days: int) -> str:
    """Tells the weather of a city.

    Args:
      city: The city.
      days: How many days.
    """
    return f"Sunny in {city} for {days} days."


def test_a_tool_is_called_and_answers(client: ollama.Client) -> None:
    """The small model calls where a text asks for it in the format's own words."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
    call = f"Answer with exactly: {call}"
    ask = {"model": MODEL, "options": {"num_predict": 80, "temperature": 0}, "tools": [weather]}
    reply = client.chat(**ask, messages=[user(call)])
    parts = [*client.chat(**ask, messages=[user(call)], stream=True)]
    made = [made for part in parts for made in part.message.tool_calls or ()]
    assert made == [*(reply.message.tool_calls or ())]
    history = [
        user(QUESTION),
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "tool_name": "weather", "content": weather("Paris", 1)},
    ]
    assert client.chat(**ask, messages=history).message.content


def test_generate(client: ollama.Client) -> None:
    reply = client.generate(**ASK, prompt=COUNT, system="You are terse.")
    assert (reply.done_reason, reply.eval_count) == ("length", 12)
    assert "".join(part.response for part in client.generate(**ASK, prompt=COUNT, system="You are terse.", stream=True))
    assert client.generate(**ASK, prompt="One, two, three,", raw=True).response.startswith(" four")


def test_embed(client: ollama.Client) -> None:
    one, other = client.embed(MODEL, ["A noria.", "A wheel."], truncate=True).embeddings
    assert len(one) == len(other) == 576
    assert sum(value * value for value in one) == pytest.approx(1)
    assert client.embeddings(MODEL, "A noria.").embedding == one


def test_keep_alive_and_think_pass(client: ollama.Client) -> None:
    for keep_alive in (0, 60.0, "10m", -1):
        assert client.chat(**CHAT, keep_alive=keep_alive, think=True).message.content
    assert client.generate(MODEL).done_reason == "load"
    assert client.chat(MODEL, keep_alive="5m").done_reason == "load"


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="does not exist here") as caught:
        client.chat("nobody", [user(COUNT)])
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="noria pull") as caught:
        client.pull("mistral")
    assert caught.value.status_code == 403
    with pytest.raises(ollama.ResponseError, match="noria rm"):
        client.delete(MODEL)
    with pytest.raises(ollama.ResponseError, match="takes no images"):
        client.chat(MODEL, [{**user("What is it?"), "images": [b"GIF89a"]}])
    with pytest.raises(ollama.ResponseError, match=r"options\.num_ctx must be at most the context of 8192"):
        [*client.chat(MODEL, [user(COUNT)], options={"num_ctx": 10_000}, stream=True)]


def test_leaving_a_stream_aborts_the_request(client: ollama.Client, is_aborted: Aborted) -> None:
    with is_aborted():
        stream = client.chat(MODEL, [user(STORY)], stream=True)
        assert next(stream).message.content
        stream.close()


async def _streamed() -> list[str]:
    """What Home Assistant sends: integers with a fraction of 0 and a duration."""
    client = ollama.AsyncClient(host=SERVER)
    options = {"num_ctx": 8192.0, "num_predict": 12}
    chat = client.chat(MODEL, [user(COUNT)], tools=None, stream=True, keep_alive="300s", options=options, think=False)
    return [part["message"].get("content") async for part in await chat]


def test_home_assistants_request() -> None:
    import asyncio

    assert "".join(asyncio.run(_streamed()))
