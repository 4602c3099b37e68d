"""LangChain's ChatOpenAI and OpenAIEmbeddings against a live server."""

from typing import Any

import openai
import pytest
from asking import BASE, COUNT, MODEL, QUESTION, Weather
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

CONNECTION: dict[str, Any] = {"base_url": BASE, "api_key": "none", "model": MODEL, "max_retries": 0}
MESSAGES = [SystemMessage("You are terse."), HumanMessage(COUNT)]
ASK = [HumanMessage(QUESTION)]


@tool
def add(first: int, second: int) -> int:
    """Adds two numbers."""
    return first + second


def chat(max_tokens: int = 12, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**CONNECTION, temperature=0, max_tokens=max_tokens, **options)


def test_whole_streamed_batched_and_continued() -> None:
    whole = chat().invoke(MESSAGES)
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == 12
    parts = list(chat(stream_usage=True).stream(MESSAGES))
    assert len(parts) > 3
    assert "".join(part.text for part in parts) == whole.text
    assert sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata) == 12
    assert [answer.text for answer in chat().batch([MESSAGES] * 3)] == [whole.text] * 3
    assert chat().invoke([*MESSAGES, whole, HumanMessage("Go on.")]).text  # LangChain sends it back in its own way


def test_options_reach_the_model() -> None:
    answer = chat(seed=3, top_p=0.9, stop=["three"], logprobs=True, top_logprobs=2, n=1, user="u").invoke(MESSAGES)
    assert "three" not in answer.text
    assert len(answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
    extended = chat(extra_body={"top_k": 1, "structured_outputs": {"choice": ["yes", "no"]}}).invoke(MESSAGES)
    assert extended.text in ("yes", "no")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(method: Any) -> None:
    model = chat(100).with_structured_output(Weather, method=method)
    whole = model.invoke(ASK)
    assert isinstance(whole, Weather)
    assert list(model.stream(ASK))[-1] == whole


def test_structured_output_of_any_json() -> None:
    schema = {"title": "city", "description": "A city.", "type": "object", "properties": {"city": {"type": "string"}}}
    model = chat(200).with_structured_output(schema, method="json_mode", include_raw=True)
    try:
        answer = model.invoke(ASK)
        text = answer["raw"].content
        assert isinstance(answer["parsed"], dict)
    except openai.LengthFinishReasonError as cut:  # on some processors the answer is an object without an end
        text = cut.completion.choices[0].message.content or ""
    assert text.startswith("{")


@pytest.mark.parametrize("tool_choice", ["any", "required", "add"])
@pytest.mark.parametrize("strict", [None, True])
def test_tools_are_called_and_answered(tool_choice: str, strict: bool | None) -> None:
    model = chat(60).bind_tools([add], tool_choice=tool_choice, strict=strict, parallel_tool_calls=False)
    question = HumanMessage("What is 2 + 3?")
    message = model.invoke([question])
    (call,) = message.tool_calls
    result = add.invoke(call)
    assert isinstance(result, ToolMessage)
    assert int(result.content) == call["args"]["first"] + call["args"]["second"]
    streamed = None
    for part in model.stream([question]):
        streamed = part if streamed is None else streamed + part
    assert streamed is not None
    assert [call["args"] for call in streamed.tool_calls] == [call["args"]]
    final = chat(60).bind_tools([add]).invoke([question, message, result])
    assert final.text or final.tool_calls


def test_the_responses_api() -> None:
    whole = chat(16, use_responses_api=True).invoke(MESSAGES)
    assert isinstance(whole, AIMessage)
    assert whole.text
    parts = list(chat(16, use_responses_api=True).stream(MESSAGES))
    assert "".join(part.text for part in parts) == whole.text
    assert chat(16, use_responses_api=True).invoke([*MESSAGES, whole, HumanMessage("Go on.")]).text


def test_completions_and_embeddings() -> None:
    assert OpenAI(**CONNECTION, temperature=0, max_tokens=4).invoke("One, two, three,")
    embeddings = OpenAIEmbeddings(**CONNECTION, check_embedding_ctx_length=False)
    one, two = embeddings.embed_documents(["One.", "Another text."])
    assert embeddings.embed_query("One.") == pytest.approx(one, abs=1e-3)
    assert len(one) == len(two)


def test_an_error_is_the_sdks() -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ChatOpenAI(**CONNECTION, temperature=9).invoke(MESSAGES)
