"""pi's `pi --print`, with each API by which it reaches a server of one's own."""

import json

import pytest

from tests.agents.chats import check_a_file_is_written, check_two_turns
from tests.agents.edits import SAID, answering
from tests.agents.programs import Programs

MODEL = "smollm2-135m-instruct"
CHAT = "openai-completions"
OTHERS = {"openai-responses": "/v1", "anthropic-messages": ""}
"""The other APIs, each with the path after which pi adds its own."""
QUIET = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}


def asked(programs: Programs, *arguments: str, api: str = CHAT, base: str = "/v1") -> str:
    """What `pi --print` prints."""
    folder = programs.home / ".pi" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    models = [{"id": MODEL, "contextWindow": 8192, "maxTokens": 1024}]
    provider = {"baseUrl": f"{programs.record.url}{base}", "api": api, "apiKey": "none", "models": models}
    (folder / "models.json").write_text(json.dumps({"providers": {"noria": provider}}))
    return programs.run("pi", "--model", f"noria/{MODEL}", "--print", *arguments, **QUIET)


def test_an_answer_and_a_second_turn(programs: Programs) -> None:
    check_two_turns(programs, asked, "--continue", "Go on.")


def test_a_file_is_written(programs: Programs) -> None:
    check_a_file_is_written(programs, asked, "write", "path")


@pytest.mark.parametrize("api", OTHERS)
def test_an_answer_in_another_api(api: str, programs: Programs) -> None:
    programs.record.edit = answering()
    assert SAID in asked(programs, "Count from one to ten.", api=api, base=OTHERS[api])
    assert not programs.record.errors
