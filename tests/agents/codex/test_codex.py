"""Codex's `codex exec`, with OpenAI's Responses API."""

from tests.agents.edits import SAID, answering, calling
from tests.agents.programs import Programs
from tests.agents.proxy import Record

RESPONSES = "/v1/responses"
CONFIG = """
model = "smollm2-135m-instruct"
model_provider = "noria"
check_for_update_on_startup = false

[model_providers.noria]
name = "Noria"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[features]
apps = false
plugins = false
remote_plugin = false
"""


def asked(programs: Programs, *arguments: str, fails: bool = False) -> str:
    """The last message that `codex exec` prints."""
    folder = programs.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CONFIG.format(url=programs.record.url))
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return programs.run("codex", "exec", *flags, *arguments, fails=fails)


def test_an_answer_and_a_second_turn(programs: Programs, record: Record) -> None:
    record.edit = answering()
    assert SAID in asked(programs, "Count from one to ten.")
    assert SAID in asked(programs, "resume", "--last", "Go on.")
    roles = [item.get("role") for item in record.posts(RESPONSES)[-1].sent["input"]]
    assert roles[-2:] == ["assistant", "user"]
    assert not record.errors


def test_a_command_is_run(programs: Programs, record: Record) -> None:
    record.edit = calling("exec_command", cmd="echo hello > hello.txt")
    asked(programs, "Write hello to hello.txt.")
    assert (programs.work / "hello.txt").read_text() == "hello\n"
    assert len(record.posts(RESPONSES)) == 2
    assert not record.errors


def test_a_prompt_that_is_too_long_is_known_as_such(programs: Programs, record: Record) -> None:
    """Nothing is shortened: every field that it sends is taken, and the prompt is longer than the context."""
    asked(programs, "Count from one to ten.", fails=True)
    assert record.errors
    assert all("context_length_exceeded" in error for error in record.errors)
