"""Mistral's Vibe, `vibe -p`, in the three ways in which it reaches a server."""

import json

import pytest

from tests.agents.chats import CHAT, check_a_file_is_written, check_two_turns
from tests.agents.programs import Programs

WAYS = {
    "openai": {"name": "noria", "backend": "generic", "api_style": "openai"},
    "reasoning": {"name": "noria", "backend": "generic", "api_style": "reasoning"},
    "mistral": {"name": "mistral", "backend": "mistral"},
}
MODEL = {"name": "smollm2-135m-instruct", "alias": "small"}
QUIET = "enable_telemetry = false\nenable_update_checks = false\nenable_connectors = false\n"


def asked(programs: Programs, way: str, prompt: str, *flags: str) -> str:
    """What `vibe -p` prints. As Mistral's provider it looks for its firm's settings, in vain: nothing stops that."""
    provider = {**WAYS[way], "api_base": f"{programs.record.url}/v1", "api_key_env_var": "KEY"}
    model = {**MODEL, "provider": provider["name"]}
    folder = programs.home / ".vibe"
    folder.mkdir(exist_ok=True)
    tables = f"[[providers]]\n{table(provider)}[[models]]\n{table(model)}"
    (folder / "config.toml").write_text(f'{QUIET}active_model = "small"\n{tables}')
    said = programs.run("vibe", "--trust", "--auto-approve", *flags, "-p", prompt, KEY="none")
    programs.record.strangers.clear()
    return said


def table(values: dict[str, str]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_and_a_second_turn(way: str, programs: Programs) -> None:
    check_two_turns(programs, lambda programs, *words: asked(programs, way, *words), "Go on.", "--continue")
    assert '"usage":{"prompt_tokens":' in programs.record.posts(CHAT)[-1].answer, "it compacts by these numbers"


@pytest.mark.parametrize("way", WAYS)
def test_a_file_is_written(way: str, programs: Programs) -> None:
    check_a_file_is_written(programs, lambda programs, prompt: asked(programs, way, prompt), "write_file", "path")
