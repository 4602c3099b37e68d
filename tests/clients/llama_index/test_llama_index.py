"""llama-index against a live server: OpenAILike, its agents, OpenAI's responses, and OpenAILikeEmbedding."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import openai
import pytest
from asking import BASE, COUNT, MODEL, QUESTION, STORY, Aborted, Weather
from llama_index.core.agent.workflow import AgentOutput, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike

COMMON: dict[str, Any] = {"model": MODEL, "api_base": BASE, "api_key": "none", "max_retries": 0, "temperature": 0}
COUNTING, ASKING = ChatMessage(COUNT), ChatMessage(QUESTION)


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


def like(max_tokens: int = 100, **options: Any) -> OpenAILike:
    described = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 8192}
    return OpenAILike(**{**COMMON, **described, "max_tokens": max_tokens, **options})


def responses(max_tokens: int = 100, **options: Any) -> OpenAIResponses:
    return OpenAIResponses(**{**COMMON, "max_output_tokens": max_tokens, "context_window": 8192, **options})


both = pytest.mark.parametrize("make", [like, responses])


@both
def test_chat_whole_streamed_and_continued(make: Callable[..., FunctionCallingLLM]) -> None:
    messages = [ChatMessage("You are terse.", role="system"), COUNTING]
    whole = make(16).chat(messages)
    parts = [part.delta or "" for part in make(16).stream_chat(messages)]
    assert len(parts) > 3
    assert "".join(parts) == whole.message.content
    assert make(16).chat([*messages, whole.message, ChatMessage("Go on.")]).message.content

    async def streamed() -> str:
        return "".join([part.delta or "" async for part in await make(16).astream_chat(messages)])

    assert asyncio.run(streamed()) == whole.message.content


def test_usage() -> None:
    raw = like(16).chat([COUNTING]).raw
    assert raw.usage.completion_tokens == 16
    options = {"stream_options": {"include_usage": True}}
    assert list(like(16, additional_kwargs=options).stream_chat([COUNTING]))[-1].raw.usage.completion_tokens == 16


def test_complete() -> None:
    for chat in (True, False):  # as a chat, and at /v1/completions
        llm = like(8, is_chat_model=chat)
        whole = llm.complete("One, two, three,").text
        assert whole
        assert list(llm.stream_complete("One, two, three,"))[-1].text == whole


@both
def test_a_tool_is_called_and_answers(make: Callable[..., FunctionCallingLLM]) -> None:
    tool = FunctionTool.from_defaults(weather)
    llm = make(100)
    forced = {"user_msg": ASKING, "tool_required": True, "allow_parallel_tool_calls": False}
    answer = llm.chat_with_tools([tool], **forced)
    (call,) = llm.get_tool_calls_from_response(answer)
    assert set(call.tool_kwargs) == {"city"}
    streamed = list(llm.stream_chat_with_tools([tool], **forced))[-1]
    assert llm.get_tool_calls_from_response(streamed)[0].tool_kwargs == call.tool_kwargs
    ids = {"tool_call_id": call.tool_id, "call_id": call.tool_id}
    result = ChatMessage(weather(**call.tool_kwargs), role="tool", additional_kwargs=ids)
    final = llm.chat_with_tools([tool], chat_history=[ASKING, answer.message, result])
    assert final.message.content or llm.get_tool_calls_from_response(final, error_on_no_tool_call=False)


def test_an_agent_runs_a_tool() -> None:
    agent = FunctionAgent(tools=[weather], llm=like(60), initial_tool_choice="required", streaming=True)

    async def run() -> list[Any]:
        handler = agent.run(user_msg=QUESTION, max_iterations=2, early_stopping_method="generate")
        events = [event async for event in handler.stream_events()]
        await handler
        return events

    events = asyncio.run(run())
    assert [event for event in events if isinstance(event, ToolCallResult)]
    assert [event for event in events if isinstance(event, AgentOutput)]


def test_an_answer_of_a_model() -> None:
    prompt = PromptTemplate("What is the weather in {city}?")
    for llm in (like(should_use_structured_outputs=True), like(), responses()):
        assert isinstance(llm.structured_predict(Weather, prompt, city="Paris"), Weather)
    *_, last = like(should_use_structured_outputs=True).stream_structured_predict(Weather, prompt, city="Paris")
    assert Weather.model_validate(last.model_dump())


@both
def test_errors(make: Callable[..., FunctionCallingLLM]) -> None:
    with pytest.raises(openai.NotFoundError):
        make(model="gpt").chat([COUNTING])
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        make().chat([COUNTING], temperature=9)
    assert bad.value.param == "temperature"


def test_a_stream_that_its_reader_leaves_is_aborted(is_aborted: Aborted) -> None:
    with is_aborted():
        stream = like(2000).stream_chat([ChatMessage(STORY)])
        next(stream)
        del stream  # the client has no way to close a stream
        gc.collect()


def test_embeddings() -> None:
    model = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE, api_key="none", max_retries=0)
    one, two = model.get_text_embedding_batch(["One.", "Another text."])
    assert model.get_query_embedding("One.") == pytest.approx(one, abs=1e-3)
    assert len(one) == len(two) > 1
