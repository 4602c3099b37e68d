"""pydantic-ai against a live server: agents over OpenAI's chat and responses models, Anthropic's, and Mistral's."""

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from asking import BASE, COUNT, MODEL, QUESTION, SERVER, STORY, Aborted, Weather
from pydantic_ai import Agent, ModelHTTPError, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.mistral import MistralProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition


def openai() -> OpenAIProvider:
    return OpenAIProvider(base_url=BASE, api_key="none")


MODELS: dict[str, Callable[[str], Model]] = {
    "chat": lambda name: OpenAIChatModel(name, provider=openai()),
    "responses": lambda name: OpenAIResponsesModel(name, provider=openai()),
    "anthropic": lambda name: AnthropicModel(name, provider=AnthropicProvider(base_url=SERVER, api_key="none")),
    "mistral": lambda name: MistralModel(name, provider=MistralProvider(base_url=SERVER, api_key="none")),
}
every_model = pytest.mark.parametrize("model", MODELS, indirect=True)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Model:
    """A model with connections of its own: each test has an event loop of its own."""
    return MODELS[request.param](MODEL)


def agent(model: Model, max_tokens: int = 100, **options: Any) -> Agent[None, Any]:
    return Agent(model, model_settings={"temperature": 0, "max_tokens": max_tokens}, **options)


@every_model
def test_a_text_whole_streamed_and_continued(model: Model) -> None:
    async def streamed() -> str:
        async with agent(model, 16, instructions="You are terse.").run_stream(COUNT) as result:
            return [text async for text in result.stream_text(debounce_by=None)][-1]

    async def all_of() -> None:
        whole = await agent(model, 16, instructions="You are terse.").run(COUNT)
        assert whole.usage.output_tokens == 16
        assert await streamed() == whole.output
        assert (await agent(model).run("Go on.", message_history=whole.all_messages())).output

    asyncio.run(all_of())


@pytest.mark.parametrize(
    ("name", "kind"),
    [*product(["chat", "responses"], [NativeOutput, ToolOutput]), ("anthropic", ToolOutput)],
)
def test_an_answer_of_a_model(name: str, kind: Callable[[type], Any]) -> None:
    """`NativeOutput` is a response format, `ToolOutput` a call. The client offers Anthropic's for known names only."""
    asker = agent(MODELS[name](MODEL), output_type=kind(Weather))

    async def both() -> tuple[Weather, Weather]:
        whole = await asker.run(QUESTION)
        async with asker.run_stream(QUESTION) as result:
            return whole.output, await result.get_output()

    whole, streamed = asyncio.run(both())
    assert isinstance(whole, Weather)
    assert streamed == whole


@every_model
def test_a_tool_is_called_and_answers(model: Model) -> None:
    schema = Weather.model_json_schema()
    tool = ToolDefinition(name="weather", description="The weather in a city.", parameters_json_schema=schema)
    forced = ModelRequestParameters(function_tools=[tool], allow_text_output=False)
    free = ModelRequestParameters(function_tools=[tool])
    question = ModelRequest.user_text_prompt(QUESTION)
    settings = ModelSettings(temperature=0, max_tokens=60, parallel_tool_calls=False)

    async def call_and_answer() -> tuple[ModelResponse, ModelResponse, ModelResponse]:
        called = await model_request(model, [question], model_settings=settings, model_request_parameters=forced)
        stream = model_request_stream(model, [question], model_settings=settings, model_request_parameters=forced)
        async with stream as parts:
            assert [part async for part in parts]
        call = called.parts[-1]
        assert isinstance(call, ToolCallPart)
        result = ModelRequest([ToolReturnPart(call.tool_name, "Sunny.", call.tool_call_id)])
        history = [question, called, result]
        final = await model_request(model, history, model_settings=settings, model_request_parameters=free)
        return called, parts.get(), final

    called, streamed, final = asyncio.run(call_and_answer())
    first, second = (response.parts[-1] for response in (called, streamed))
    Weather.model_validate(first.args_as_dict())
    assert (second.tool_name, second.args_as_dict()) == (first.tool_name, first.args_as_dict())
    assert final.parts


@every_model
def test_a_stream_that_its_reader_leaves_is_aborted(model: Model, is_aborted: Aborted) -> None:
    async def leave() -> None:
        async with agent(model, 2000).run_stream(STORY) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break

    with is_aborted():
        asyncio.run(leave())


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_errors(make: Callable[[str], Model]) -> None:
    with pytest.raises(ModelHTTPError) as missing:
        asyncio.run(agent(make("gpt")).run(COUNT))
    assert missing.value.status_code == 404
    with pytest.raises(ModelHTTPError, match="top_p") as bad:
        asyncio.run(Agent(make(MODEL), model_settings={"top_p": 9}).run(COUNT))
    assert bad.value.status_code == 400


def test_embeddings() -> None:
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=openai()))
    one, two = asyncio.run(embedder.embed_documents(["One.", "Another text."])).embeddings
    assert len(one) == len(two) > 1
