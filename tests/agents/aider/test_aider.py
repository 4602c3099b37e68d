"""aider: its model answers with a whole file, and aider writes it."""

import json
from pathlib import Path

from tests.agents.edits import SAID, answering, is_generation, shortened
from tests.agents.programs import Programs
from tests.agents.proxy import Body, Record

FILE = "hello.txt"
ANSWER = f"{FILE}\n```\nhello\n```\n"
QUIET = [
    *("--yes-always", "--no-git", "--no-analytics", "--no-check-update", "--no-show-release-notes", "--no-pretty"),
    *("--no-show-model-warnings", "--no-detect-urls", "--no-suggest-shell-commands"),
    *("--edit-format", "whole", "--map-tokens", "0"),
]


def asked(programs: Programs, message: str, *files: str | Path) -> str:
    """Its list of models is there: it fetches none."""
    models = programs.home / ".aider" / "caches" / "model_prices_and_context_window.json"
    models.parent.mkdir(parents=True)
    models.write_text(json.dumps({"openai/smollm2-135m-instruct": {"max_input_tokens": 8192, "mode": "chat"}}))
    command = ["aider", "--model", "openai/smollm2-135m-instruct", *QUIET, "--message", message, *files]
    url = f"{programs.record.url}/v1"
    return programs.run(*command, OPENAI_API_BASE=url, OPENAI_API_KEY="none", LITELLM_LOCAL_MODEL_COST_MAP="True")


def test_a_question_is_answered(programs: Programs, record: Record) -> None:
    record.edit = answering()
    assert SAID in asked(programs, "/ask What is the capital of France?")
    assert not record.errors


def test_a_file_is_written(programs: Programs, record: Record) -> None:
    """The model is too weak to answer in aider's format: the proxy asks for that answer."""

    def edit(path: str, body: Body) -> Body:
        choice = {"structured_outputs": {"choice": [ANSWER]}}
        return {**shortened(path, body, 60), **choice} if is_generation(path) else body

    record.edit = edit
    asked(programs, "Write hello.", FILE)
    assert (programs.work / FILE).read_text() == "hello\n"
    assert not record.errors
