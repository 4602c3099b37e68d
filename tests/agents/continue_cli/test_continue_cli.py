"""Continue's command line `cn -p`, with OpenAI's chat API."""

from tests.agents.edits import SAID, answering, calling
from tests.agents.programs import Programs
from tests.agents.proxy import Record

CHAT = "/v1/chat/completions"
CONFIG = """
name: Noria
version: 0.0.1
schema: v1
models:
  - name: Noria
    provider: openai
    model: smollm2-135m-instruct
    apiBase: {url}/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
"""
QUIET = {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}


def asked(programs: Programs, *arguments: str) -> str:
    config = programs.home / "config.yaml"
    config.write_text(CONFIG.format(url=programs.record.url))
    return programs.run("cn", "-p", "--auto", "--config", config, *arguments, **QUIET)


def test_an_answer_and_a_second_turn(programs: Programs, record: Record) -> None:
    record.edit = answering()
    assert SAID in asked(programs, "Count from one to ten.")
    assert SAID in asked(programs, "--resume", "Go on.")
    assert record.posts(CHAT)[-1].sent["messages"][-2]["role"] == "assistant"
    assert not record.errors


def test_a_file_is_written(programs: Programs, record: Record) -> None:
    file = programs.work / "hello.txt"
    record.edit = calling("Write", filepath=str(file), content="hello")
    asked(programs, "Write hello to hello.txt.")
    assert file.read_text() == "hello"
    assert not record.errors
