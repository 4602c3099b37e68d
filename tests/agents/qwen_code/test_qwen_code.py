"""Qwen Code's `qwen -p`, with OpenAI's chat API."""

import json

from tests.agents.edits import SAID, answering, calling
from tests.agents.programs import Programs
from tests.agents.proxy import Record

MODEL = "smollm2-135m-instruct"
CHAT = "/v1/chat/completions"
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


def test_an_answer_and_a_second_turn(programs: Programs, record: Record) -> None:
    record.edit = answering()
    assert SAID in asked(programs, "Count from one to ten.")
    assert SAID in asked(programs, "Go on.", "--continue")
    assert record.posts(CHAT)[-1].sent["messages"][-2]["role"] == "assistant"
    assert not record.errors


def test_a_file_is_written(programs: Programs, record: Record) -> None:
    file = programs.work / "hello.txt"
    record.edit = calling("write_file", file_path=str(file), content="hello")
    asked(programs, "Write hello to hello.txt.")
    assert file.read_text() == "hello"
    assert not record.errors
