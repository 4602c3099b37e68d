"""aider: its model answers with a whole file, and aider writes it."""

import json
from pathlib import Path

from edits import is_generation, short
from programs import Programs
from proxy import Body, Record

FILE = "hello.txt"
ANSWER = f"{FILE}\n```\nhello\n```\n"
QUIET = """--yes-always --no-git --no-analytics --no-check-update --no-show-model-warnings --no-show-release-notes
--no-detect-urls --no-suggest-shell-commands --no-pretty --edit-format whole --map-tokens 0""".split()


def asked(programs: Programs, message: str, *files: str | Path) -> str:
    """Its list of models is there: it fetches none."""
    models = programs.home / ".aider" / "caches" / "model_prices_and_context_window.json"
    models.parent.mkdir(parents=True)
    models.write_text(json.dumps({"openai/smollm2-135m-instruct": {"max_input_tokens": 8192, "mode": "chat"}}))
    command = ["aider", "--model", "openai/smollm2-135m-instruct", *QUIET, "--message", message, *files]
    url = f"{programs.record.url}/v1"
    return programs.run(*command, OPENAI_API_BASE=url, OPENAI_API_KEY="none", LITELLM_LOCAL_MODEL_COST_MAP="True")


def test_a_question_is_answered(programs: Programs, record: Record) -> None:
    record.edit = short(tokens=16)
    asked(programs, "/ask What is the capital of France?")
    assert record.exchanges
    assert not record.errors


def test_a_file_is_written(programs: Programs, record: Record) -> None:
    """The model is too weak to answer in aider's format: the proxy asks for that answer."""
    shorten = short(tokens=60)

    def edit(path: str, body: Body) -> Body:
        return {**shorten(path, body), "structured_outputs": {"choice": [ANSWER]}} if is_generation(path) else body

    record.edit = edit
    asked(programs, "Write hello.", FILE)
    assert (programs.work / FILE).read_text() == "hello\n"
    assert not record.errors
