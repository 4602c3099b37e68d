"""Claude Code's `claude -p`, with Anthropic's Messages API."""

import json
from typing import Any

from tests.agents.edits import SAID, answering, calling
from tests.agents.programs import MODULES, Programs
from tests.agents.proxy import Record

MODEL = "smollm2-135m-instruct"
MESSAGES = "/v1/messages"
PROGRAM = MODULES / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
}


def asked(programs: Programs, prompt: str, *flags: str, fails: bool = False, **variables: str) -> Any:
    """What `claude -p` says of its answer."""
    address = {"ANTHROPIC_BASE_URL": programs.record.url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL}
    small = {"ANTHROPIC_SMALL_FAST_MODEL": MODEL, "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL}
    command = [PROGRAM, "-p", prompt, "--output-format", "json", "--permission-mode", "acceptEdits", *flags]
    return json.loads(programs.run(*command, fails=fails, **address, **small, **QUIET, **variables))


def test_an_answer_and_a_second_turn(programs: Programs, record: Record) -> None:
    """Its answers must end by themselves: it asks again for one that `max_tokens` ended."""
    record.edit = answering()
    assert asked(programs, "Count from one to three.")["result"] == SAID
    assert asked(programs, "Go on.", "--continue")["result"] == SAID
    roles = [message["role"] for message in record.posts(MESSAGES)[-1].sent["messages"] if message["role"] != "system"]
    assert roles[-2:] == ["assistant", "user"]
    assert not record.errors


def test_a_file_is_written(programs: Programs, record: Record) -> None:
    file = programs.work / "hello.txt"
    record.edit = calling("Write", file_path=str(file), content="hello")
    answer = asked(programs, "Write hello to hello.txt.")
    assert file.read_text() == "hello"
    assert answer["num_turns"] == 2
    assert not record.errors


def test_a_prompt_that_is_too_long_is_known_as_such(programs: Programs, record: Record) -> None:
    """Nothing is shortened: every field that it sends is taken, and the prompt alone is longer than the context."""
    answer = asked(programs, "Count from one to three.", fails=True)
    assert answer["result"].startswith("Prompt is too long")
    assert all("prompt is too long: " in error for error in record.errors)


def test_less_is_asked_for_where_the_answer_does_not_fit(programs: Programs, record: Record) -> None:
    """The prompt fits the context, but not with the answer that it may have: the next request allows less of it."""
    record.edit = answering(tokens=None)
    assert asked(programs, "Count from one to three.")["result"] == SAID
    refused, taken = record.posts(MESSAGES)
    assert "input length and `max_tokens` exceed context limit: " in refused.answer
    assert taken.sent["max_tokens"] < refused.sent["max_tokens"]
    assert (refused.status, taken.status) == (400, 200)
