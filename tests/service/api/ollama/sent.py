"""Requests of Ollama's API, and their answers."""

import json
from typing import Any

from tests.service.live import Live

Json = dict[str, Any]
USER = [{"role": "user", "content": "hi"}]


def whole(live: Live, path: str, **body: Any) -> Json:
    """The answer of a request without a stream."""
    response = live.post(path, {"stream": False, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def lines(live: Live, path: str, **body: Any) -> list[Json]:
    """The lines of a stream: each is JSON, without marks, and only the last is done."""
    response = live.post(path, body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert response.text.endswith("}\n")
    found = [json.loads(line) for line in response.text.splitlines()]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    return found


def error_of(live: Live, path: str, body: Any, status: int = 400) -> str:
    """The error of a request, in Ollama's shape."""
    response = live.post(path, body)
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    text = response.json()["error"]
    assert "\n" not in text
    return text
