"""Cline's `cline --json`, with OpenAI's chat API. With `--id`, for a second turn, it always opens its own screen."""

import json

from tests.agents.chats import CHAT
from tests.agents.edits import SAID, answering, calling
from tests.agents.programs import MODULES, Programs

PROGRAM = MODULES / "@cline" / "cli-linux-x64" / "bin" / "cline"
MODEL = "smollm2-135m-instruct"


def asked(programs: Programs, prompt: str) -> str:
    """What `cline --json` prints, an event a line.

    It looks for its maker's feature flags, in vain: nothing stops that.
    """
    settings = programs.home / "settings.json"
    settings.write_text(json.dumps({"telemetryOptOut": True, "autoUpdateEnabled": False}))
    where = ("--provider", "openai", "--apikey", "none", "--modelid", MODEL, "--baseurl", f"{programs.record.url}/v1")
    quiet = {"CLINE_GLOBAL_SETTINGS_PATH": str(settings), "CLINE_SESSION_BACKEND_MODE": "local"}
    programs.run(PROGRAM, "auth", *where, **quiet)
    said = programs.run(PROGRAM, "--json", prompt, **quiet)
    programs.record.strangers.clear()
    return said


def test_an_answer(programs: Programs) -> None:
    programs.record.edit = answering()
    said = asked(programs, "Count from one to ten.").splitlines()
    assert json.loads(said[-1])["text"] == SAID
    assert not programs.record.errors


def test_a_file_is_written(programs: Programs) -> None:
    file = programs.work / "hello.txt"
    programs.record.edit = calling("editor", path=str(file), new_text="hello")
    asked(programs, "Write hello to hello.txt.")
    assert file.read_text() == "hello"
    assert len(programs.record.posts(CHAT)) == 2
    assert not programs.record.errors
