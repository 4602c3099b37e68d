"""OpenAI's Agents SDK, with both of OpenAI's interfaces."""

from typing import Literal

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.agents.proxy import Record

MODEL = "smollm2-135m-instruct"
ASK = "What is the capital of Japan?"
"""Its answer ends before `max_tokens`: the SDK takes no response that is incomplete."""
SETTINGS = ModelSettings(temperature=0, max_tokens=60, include_usage=True)
set_tracing_disabled(True)


class Word(BaseModel):
    """A word."""

    word: Literal["one", "two"]


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, record: Record) -> object:
    client = AsyncOpenAI(base_url=f"{record.url}/v1", api_key="none", max_retries=0)
    return request.param(model=MODEL, openai_client=client)


def test_an_answer_and_a_second_turn(model: object) -> None:
    agent = Agent(name="Counter", instructions="You are terse.", model=model, model_settings=SETTINGS)
    first = Runner.run_sync(agent, ASK)
    assert first.final_output
    again = Runner.run_sync(agent, [*first.to_input_list(), {"role": "user", "content": "And of France?"}])
    assert again.final_output
    assert again.context_wrapper.usage.output_tokens > 0


def test_a_tool_is_called_and_the_model_answers(model: object) -> None:
    """The SDK forces the first call only: after it the choice is auto again."""
    cities = []

    @function_tool
    def weather(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        return f"It is sunny in {city}."

    settings = SETTINGS.resolve(ModelSettings(tool_choice="required", parallel_tool_calls=False))
    agent = Agent(name="Weather", model=model, model_settings=settings, tools=[weather])
    assert Runner.run_sync(agent, "What is the weather in Paris?", max_turns=4).final_output
    assert "Paris" in cities


def test_an_object_of_a_schema(model: object) -> None:
    agent = Agent(name="Word", model=model, model_settings=SETTINGS, output_type=Word)
    assert Runner.run_sync(agent, ASK).final_output.word in ("one", "two")
