"""Mistral's Vibe, `vibe -p`, with OpenAI's chat API and with Mistral's own package."""

import pytest
from edits import calling, short
from programs import Programs
from proxy import Record

CHAT = "/v1/chat/completions"
CONFIG = """
active_model = "local"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false

[[providers]]
name = "{name}"
api_base = "{url}/v1"
api_key_env_var = "KEY"
backend = "{backend}"
api_style = "{style}"

[[models]]
name = "smollm2-135m-instruct"
provider = "{name}"
alias = "local"
"""
STYLES = [("generic", "openai"), ("generic", "reasoning"), ("mistral", "openai")]


def asked(programs: Programs, backend: str, style: str, *arguments: str) -> str:
    folder = programs.home / ".vibe"
    folder.mkdir(exist_ok=True)
    config = CONFIG.format(name="noria", url=programs.record.url, backend=backend, style=style)
    (folder / "config.toml").write_text(config)
    return programs.run("vibe", *arguments, KEY="none", MISTRAL_API_KEY="none")


@pytest.mark.parametrize(("backend", "style"), STYLES)
def test_an_answer_and_a_second_turn(programs: Programs, record: Record, backend: str, style: str) -> None:
    record.edit = short()
    assert asked(programs, backend, style, "-p", "Count from one to ten.").strip()
    assert asked(programs, backend, style, "--continue", "-p", "Go on.").strip()
    assert not record.errors


@pytest.mark.parametrize(("backend", "style"), STYLES)
def test_a_file_is_written(programs: Programs, record: Record, backend: str, style: str) -> None:
    file = programs.work / "hello.txt"
    record.edit = calling("write_file", path=str(file), content="hello")
    asked(programs, backend, style, "--auto-approve", "-p", "Write hello to hello.txt.")
    assert file.read_text() == "hello"
    assert not record.errors
