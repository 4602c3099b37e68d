"""Requests that unchanged agents have sent (tests/agents/recorded): none is refused, and known fields are ignored.

`make test-agents` runs the agents themselves. AGENTS_RECORDS keeps what they send (`tests/agents/records.py`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import END, IntegerTokenizer
from tests.service.live import Live, running

FILES = sorted((Path(__file__).parents[2] / "agents" / "recorded").glob("*.json"))
SHORT = {"/v1/responses": {"max_output_tokens": 8}, "/v1/embeddings": {}}
"""The limit for the answer's tokens, in place of the client's, of paths that do not call it `max_tokens`."""
IGNORED = {"claude_code": "output_config.effort", "codex": "tools[3]"}
"""What has no effect: an effort for a model without reasoning, and a tool that OpenAI's servers would run."""


class FillingTokenizer(IntegerTokenizer):
    """Has the tokens that fill a gap."""

    control = {"<end>": END, "[SUFFIX]": 1, "[PREFIX]": 2}  # noqa: RUF012


def recorded() -> Iterator[Any]:
    for file in FILES:
        for index, request in enumerate(json.loads(file.read_text())):
            yield pytest.param(file.stem, request["path"], request["body"], id=f"{file.stem}-{index}")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(max_model_len=2**14, tokenizer=FillingTokenizer()) as server:
        yield server


@pytest.mark.parametrize(("client", "path", "body"), [*recorded()])
def test_a_recorded_request_is_answered(live: Live, client: str, path: str, body: dict[str, Any]) -> None:
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    response = live.post(path, {**body, "model": None, **SHORT.get(path, {name: 8})})
    assert response.status_code == 200, response.text
    assert '"error":{' not in response.text
    assert response.headers.get("x-noria-ignored") == IGNORED.get(client)
