"""LiteLLM against a live server, as a server of OpenAI's API, as a vLLM, as Anthropic's, as Ollama and as Mistral's."""

import asyncio
import os
from typing import Any

import pytest
from asking import BASE, COUNT, MODEL, SERVER, Weather, user

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise LiteLLM downloads it

import litellm

COMMON: dict[str, Any] = {"messages": [user(COUNT)], "api_key": "none", "max_tokens": 12, "temperature": 0}
PROVIDERS = {
    "openai": BASE,
    "hosted_vllm": BASE,
    "anthropic": SERVER,
    "ollama": SERVER,
    "ollama_chat": SERVER,
    "mistral": BASE,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": Weather.model_json_schema()}}


def body(provider: str) -> dict[str, Any]:
    return {**COMMON, "model": f"{provider}/{MODEL}", "api_base": PROVIDERS[provider]}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole_streamed_and_continued(provider: str) -> None:
    whole = litellm.completion(**body(provider))
    assert whole.choices[0].finish_reason == ("stop" if provider == "ollama" else "length")  # it says so of every end
    assert whole.usage.completion_tokens == 12
    chunks = list(litellm.completion(**body(provider), stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    counts = [[answer.usage.prompt_tokens, answer.usage.completion_tokens] for answer in (whole, chunks[-1])]
    assert counts[0] == counts[1]
    messages = [user(COUNT), whole.choices[0].message, user("Go on.")]
    assert litellm.completion(**body(provider) | {"messages": messages}).choices[0].message.content


@pytest.mark.parametrize("provider", ["ollama", "ollama_chat"])
def test_ollama_without_waiting(provider: str) -> None:
    """Asynchronous requests have another content type than others, and neither is that of JSON."""

    async def said() -> list[str]:
        whole = await litellm.acompletion(**body(provider))
        parts = [part async for part in await litellm.acompletion(**body(provider), stream=True)]
        streamed = "".join(part.choices[0].delta.content or "" for part in parts)
        return [whole.choices[0].message.content, streamed]

    whole, streamed = asyncio.run(said())
    assert whole == streamed != ""


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "mistral"])
def test_an_answer_of_a_model_and_a_call_with_its_result(provider: str) -> None:
    answer = litellm.completion(**body(provider) | {"max_tokens": 60}, response_format=Weather)
    Weather.model_validate_json(answer.choices[0].message.content)
    request = {**body(provider), "max_tokens": 60, "tools": [TOOL]}
    message = litellm.completion(**request, tool_choice="required", parallel_tool_calls=False).choices[0].message
    (call,) = message.tool_calls
    Weather.model_validate_json(call.function.arguments)
    chunks = list(litellm.completion(**request, tool_choice="required", parallel_tool_calls=False, stream=True))
    streamed = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "Sunny."}
    final = litellm.completion(**request | {"messages": [user(COUNT), message, result]}).choices[0].message
    assert final.content or final.tool_calls


def test_its_other_calls() -> None:
    connection = {"api_base": BASE, "api_key": "none"}
    text = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="One, two, three,", max_tokens=4, temperature=0, **connection
    )
    assert text.choices[0].text
    for provider in ("openai", "hosted_vllm"):
        vectors = litellm.embedding(model=f"{provider}/{MODEL}", input=["One.", "Two."], **connection).data
        assert len(vectors[0]["embedding"]) == len(vectors[1]["embedding"]) > 1
    response = litellm.responses(model=f"openai/{MODEL}", input="Hello.", max_output_tokens=16, **connection)
    assert 1 <= response.usage.output_tokens <= 16  # sampled: it may end before
    events = list(litellm.responses(model=f"openai/{MODEL}", input="Hello.", stream=True, **connection))
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_an_error_has_its_class() -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**body("openai") | {"temperature": 9})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**body("openai") | {"model": "openai/gpt"})
