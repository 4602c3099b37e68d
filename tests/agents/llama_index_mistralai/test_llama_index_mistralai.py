"""LlamaIndex's package for Mistral, which uses Mistral's own."""

from typing import Any, Literal

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.mistralai import MistralAI
from pydantic import BaseModel

from tests.agents.proxy import Record

ASK = ChatMessage(role="user", content="Count from one to ten in words.")


class Word(BaseModel):
    """A word."""

    word: Literal["one", "two"]


def weather(city: Literal["Paris"]) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


@pytest.fixture
def model(record: Record) -> Any:
    """It knows Mistral's models only: the server has this name too."""
    return MistralAI(
        model="mistral-small-latest", api_key="none", endpoint=record.url, temperature=0, max_tokens=60, max_retries=0
    )


def test_an_answer_a_stream_and_a_second_turn(model: Any, record: Record) -> None:
    first = model.chat([ASK])
    assert "".join(chunk.delta for chunk in model.stream_chat([ASK])) == first.message.content
    assert model.chat([ASK, first.message, ChatMessage(role="user", content="Go on.")]).message.content
    assert record.exchanges[0].sent["random_seed"] is None


def test_a_tool_is_called_and_answers(model: Any) -> None:
    tool = FunctionTool.from_defaults(weather)
    first = model.chat_with_tools([tool], chat_history=[ASK], tool_required=True)
    call = model.get_tool_calls_from_response(first)[0]
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Paris"})
    result = ChatMessage(role="tool", content="It is sunny.", additional_kwargs={"tool_call_id": call.tool_id})
    assert model.chat([ASK, first.message, result]).message.content


def test_an_object_of_a_schema(model: Any, record: Record) -> None:
    """It leaves the call to the model, and the embedded model makes none."""
    record.edit = lambda path, body: body | {"tool_choice": "any"}
    assert model.as_structured_llm(Word).chat([ASK]).raw.word in ("one", "two")
