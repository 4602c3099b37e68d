"""Continue's command line `cn -p`, with OpenAI's chat API."""

from tests.agents.chats import check_a_file_is_written, check_two_turns
from tests.agents.programs import Programs

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


def test_an_answer_and_a_second_turn(programs: Programs) -> None:
    check_two_turns(programs, asked, "--resume", "Go on.")


def test_a_file_is_written(programs: Programs) -> None:
    check_a_file_is_written(programs, asked, "Write", "filepath")
