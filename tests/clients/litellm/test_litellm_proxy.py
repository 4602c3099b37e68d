"""LiteLLM's proxy in front of a live server, for the packages of OpenAI and of Anthropic.

The proxy turns `/v1/messages` for a model of OpenAI's kind into calls of `/v1/responses`.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from asking import BASE, COUNT, MODEL, QUESTION, STORY, Aborted, Weather, user

PATIENCE = 300.0
"""Seconds until the proxy must answer. Its imports take twelve on two idle cores."""
CONFIG = f"""
model_list:
  - model_name: served
    litellm_params: {{model: openai/{MODEL}, api_base: {BASE}, api_key: none}}
  - model_name: missing
    litellm_params: {{model: openai/gpt, api_base: {BASE}, api_key: none}}
litellm_settings: {{num_retries: 0}}
router_settings: {{num_retries: 0, disable_cooldowns: true}}
"""
ASK: dict[str, Any] = {"model": "served", "messages": [user(COUNT)], "max_tokens": 16, "temperature": 0}
LONG: dict[str, Any] = {**ASK, "messages": [user(QUESTION)], "max_tokens": 100}
SAY: dict[str, Any] = {"model": "served", "messages": [user(COUNT)], "max_tokens": 16, "extra_body": {"temperature": 0}}
ASK_CLAUDE: dict[str, Any] = {**SAY, "messages": [user(QUESTION)], "max_tokens": 100}


@dataclass(frozen=True)
class Proxy:
    url: str
    key: str


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return response.status == 200
    except urllib.error.URLError:
        return False


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    directory, key = tmp_path_factory.mktemp("proxy"), "sk-" + secrets.token_hex(32)
    config, log = directory / "config.yaml", directory / "log"
    config.write_text(CONFIG)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
    program = [Path(sys.executable).parent / "litellm", "--config", config, "--host", "127.0.0.1", "--port", port]
    # Without the first variable the proxy downloads a list of prices.
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": key}
    with (
        log.open("w") as output,
        subprocess.Popen(
            program, env=os.environ | variables, cwd=directory, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
        while not answers(f"{url}/health/liveliness"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield Proxy(url, key)
        process.terminate()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=proxy.key, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(proxy: Proxy) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=proxy.url, api_key=proxy.key, max_retries=0) as client:
        yield client


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 16)
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 16


def test_chat_of_a_schema_and_with_a_tool(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(**LONG, response_format=Weather).choices[0].message.parsed
    assert isinstance(parsed, Weather)
    request = {**LONG, "tools": [openai.pydantic_function_tool(Weather)], "parallel_tool_calls": False}
    message = client.chat.completions.parse(**request, tool_choice="required").choices[0].message
    (call,) = message.tool_calls
    with client.chat.completions.stream(**request, tool_choice="required") as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    final = (
        client.chat.completions.create(**{**request, "messages": [user(QUESTION), message, result]}).choices[0].message
    )
    assert final.content or final.tool_calls


def test_errors(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.chat.completions.create(**{**ASK, "model": "missing"})
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**{**ASK, "temperature": 9})
    with pytest.raises(anthropic.NotFoundError, match="gpt"):
        claude.messages.create(**{**SAY, "model": "missing"})
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(**{**SAY, "extra_body": {"temperature": 9}})


def test_a_message_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(**SAY, system="You are terse.", metadata={"user_id": "u-1"})
    assert whole.id.startswith("resp_")  # the proxy called /v1/responses
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 16)
    with claude.messages.stream(**SAY, system="You are terse.") as stream:
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == (whole.content[0].text, "max_tokens")
    assert final.usage.output_tokens == 16
    messages = [user(COUNT), {"role": "assistant", "content": whole.content}, user("Go on.")]
    assert claude.messages.create(**{**SAY, "messages": messages}).content[0].text


def test_a_message_of_a_schema_and_a_tool_that_answers(claude: anthropic.Anthropic) -> None:
    assert isinstance(claude.messages.parse(**ASK_CLAUDE, output_format=Weather).parsed_output, Weather)
    schema = Weather.model_json_schema()
    tools = [{"name": "weather", "description": "The weather in a city.", "input_schema": schema}]
    forced = {**ASK_CLAUDE, "tools": tools, "tool_choice": {"type": "tool", "name": "weather"}}
    whole = claude.messages.create(**forced)
    assert whole.stop_reason == "tool_use"
    for call in whole.content:
        Weather.model_validate(call.input)
    with claude.messages.stream(**forced) as stream:
        streamed = stream.get_final_message()
    assert [call.input for call in streamed.content] == [call.input for call in whole.content]
    sunny = [{"type": "text", "text": "Sunny."}]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": sunny} for call in whole.content]
    messages = [user(QUESTION), {"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
    assert claude.messages.create(**{**ASK_CLAUDE, "tools": tools, "messages": messages}).content


def test_a_stream_that_its_reader_leaves_is_aborted(
    client: openai.OpenAI, claude: anthropic.Anthropic, is_aborted: Aborted
) -> None:
    story = {"messages": [user(STORY)], "max_tokens": 2000, "stream": True}
    with is_aborted(), client.chat.completions.create(**ASK | story) as chunks:
        next(iter(chunks))
    with is_aborted(), claude.messages.create(**SAY | story) as events:
        next(event for event in events if event.type == "content_block_delta")
