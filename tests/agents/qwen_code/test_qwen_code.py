"""Qwen Code's `qwen -p`, with OpenAI's chat API."""

import json

from tests.agents.chats import check_a_file_is_written, check_two_turns
from tests.agents.programs import Programs

MODEL = "smollm2-135m-instruct"
SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
    "security": {"auth": {"selectedType": "openai"}},
}


def asked(programs: Programs, prompt: str, *flags: str) -> str:
    folder = programs.home / ".qwen"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    variables = {"OPENAI_BASE_URL": f"{programs.record.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    return programs.run("qwen", "--approval-mode", "yolo", *flags, "-p", prompt, **variables)


def test_an_answer_and_a_second_turn(programs: Programs) -> None:
    check_two_turns(programs, asked, "Go on.", "--continue")


def test_a_file_is_written(programs: Programs) -> None:
    check_a_file_is_written(programs, asked, "write_file", "file_path")
