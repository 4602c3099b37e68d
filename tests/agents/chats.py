"""What agents on OpenAI's chat API show alike: an answer with a second turn, and a tool that writes a file."""

from collections.abc import Callable

from tests.agents.edits import SAID, answering, calling
from tests.agents.programs import Programs

CHAT = "/v1/chat/completions"


def check_two_turns(programs: Programs, asked: Callable[..., str], *again: str) -> None:
    """`asked` runs the agent with a prompt; `again` are its arguments for a second prompt in the same conversation."""
    record = programs.record
    record.edit = answering()
    assert SAID in asked(programs, "Count from one to ten.")
    assert SAID in asked(programs, *again)
    assert record.posts(CHAT)[-1].sent["messages"][-2]["role"] == "assistant"
    assert not record.errors


def check_a_file_is_written(programs: Programs, asked: Callable[..., str], tool: str, path: str) -> None:
    """`tool` writes; `path` is its name for the file's path."""
    file = programs.work / "hello.txt"
    programs.record.edit = calling(tool, **{path: str(file), "content": "hello"})
    asked(programs, "Write hello to hello.txt.")
    assert file.read_text() == "hello"
    assert not programs.record.errors
