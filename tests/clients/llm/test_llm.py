"""The `llm` command and its OpenAI plugin against a live server."""

import json
from pathlib import Path
from typing import Any

import llm
import pytest
from asking import BASE, COUNT, MODEL, QUESTION, Weather
from click.testing import CliRunner
from llm.cli import cli
from llm.parts import ToolCallPart, ToolResultPart

PLUGIN = f"""
- model_id: noria
  model_name: {MODEL}
  api_base: {BASE}
  supports_schema: true
  supports_tools: true
- model_id: noria-completion
  model_name: {MODEL}
  api_base: {BASE}
  completion: true
- model_id: noria-responses
  model_name: {MODEL}
  api_base: {BASE}
  responses: true
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of its own, without keys or logs of the user."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "extra-openai-models.yaml").write_text(PLUGIN)


def command(*arguments: str) -> str:
    """The output of `llm ARGUMENTS`."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def options(max_tokens: int = 12) -> list[str]:
    return ["-o", "temperature", "0", "-o", "max_tokens", str(max_tokens)]


def test_the_command_with_a_model_of_the_plugin() -> None:
    arguments = ["-m", "noria", *options(), "-s", "You are terse.", COUNT]
    assert command(*arguments) == command(*arguments, "--no-stream")
    assert command("-c", "Go on.", *options()).strip()
    assert json.loads(command("logs", "--json", "-n", "1"))[0]["model"] == "noria"


def test_an_endpoint_by_its_address() -> None:
    assert command("openai", "endpoint", BASE, "--models").split() == [MODEL]
    arguments = ["openai", "endpoint", BASE, "-m", MODEL, *options(), COUNT]
    assert command(*arguments) == command(*arguments, "--no-stream")


@pytest.mark.parametrize("stream", [[], ["--no-stream"]])
def test_an_answer_of_a_schema(stream: list[str]) -> None:
    arguments = ["-m", "noria", *options(100), "--schema", json.dumps(Weather.model_json_schema()), *stream, QUESTION]
    Weather.model_validate_json(command(*arguments))


@pytest.mark.parametrize("name", ["noria-completion", "noria-responses"])
def test_its_other_apis(name: str) -> None:
    assert command("-m", name, *options(16), "One, two, three,").strip()


def test_tools_are_offered_and_a_result_goes_back() -> None:
    """`llm` cannot require a call, and the model need not make one. The test also writes a call into the history."""

    def weather(city: str) -> str:
        """The weather in a city."""
        return f"Sunny in {city}."

    model: Any = llm.get_model("noria")
    parameters = {"temperature": 0, "max_tokens": 60}
    assert model.chain(QUESTION, tools=[weather], options=parameters).text()
    call = ToolCallPart(name="weather", arguments={"city": "Paris"}, tool_call_id="call_1")
    result = ToolResultPart(name="weather", output="Sunny in Paris.", tool_call_id="call_1")
    messages = [llm.user(QUESTION), llm.assistant(call), llm.tool_message(result)]
    assert model.prompt(messages=messages, tools=[weather], **parameters).text()
