"""LangChain's own package for Mistral."""

from typing import Any, Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_mistralai import ChatMistralAI
from pydantic import BaseModel

from tests.agents.proxy import Record

ASK = HumanMessage("Count from one to ten in words.")


class Word(BaseModel):
    """A word."""

    word: Literal["one", "two"]


@tool
def weather(city: Literal["Paris"]) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


@pytest.fixture
def model(record: Record) -> Any:
    return ChatMistralAI(
        model="smollm2-135m-instruct",
        api_key="none",
        base_url=f"{record.url}/v1",
        temperature=0,
        max_tokens=60,
        max_retries=1,
        random_seed=3,
    )


def test_an_answer_a_stream_and_a_second_turn(model: Any) -> None:
    first = model.invoke([ASK])
    assert first.usage_metadata["output_tokens"]
    chunks = [*model.stream([ASK])]
    assert "".join(chunk.content for chunk in chunks) == first.content
    assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata] == [first.usage_metadata]
    assert model.invoke([ASK, first, HumanMessage("Go on.")]).content


def test_a_tool_is_called_and_answers(model: Any) -> None:
    first = model.bind_tools([weather], tool_choice="any").invoke([ASK])
    call = first.tool_calls[0]
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in first.tool_calls]
    assert model.invoke([ASK, first, *results]).content


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_an_object_of_a_schema(model: Any, method: str) -> None:
    assert model.with_structured_output(Word, method=method).invoke([ASK]).word in ("one", "two")
