"""opencode's `opencode run`, with OpenAI's chat API."""

import json

from tests.agents.chats import check_a_file_is_written, check_two_turns
from tests.agents.programs import MODULES, Programs

PROGRAM = MODULES / "opencode-linux-x64" / "bin" / "opencode"
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


def asked(programs: Programs, *arguments: str) -> str:
    """What `opencode run` prints. At each start it looks for its package of plugins, in vain: nothing stops that."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{programs.record.url}/v1", "apiKey": "none"},
        "models": {"smollm2-135m-instruct": {"limit": {"context": 8192, "output": 1024}}},
    }
    config = {"provider": {"noria": provider}, "share": "disabled", "autoupdate": False, "permission": "allow"}
    (programs.work / "opencode.json").write_text(json.dumps(config))
    said = programs.run(PROGRAM, "run", "--model", "noria/smollm2-135m-instruct", *arguments, **QUIET)
    programs.record.strangers.clear()
    return said


def test_an_answer_and_a_second_turn(programs: Programs) -> None:
    check_two_turns(programs, asked, "--continue", "Go on.")


def test_a_file_is_written(programs: Programs) -> None:
    check_a_file_is_written(programs, asked, "write", "filePath")
