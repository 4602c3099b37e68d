"""Streams of the fake model, read to their ends."""

import json
from typing import Any

from tests.service.live import Live, answer


def rendered(text: str) -> str:
    """One user message in the fake chat format."""
    return f"u:{text};a:"


def chat_stream(live: Live, text: str, **body: Any) -> list[dict[str, Any]]:
    body |= {"messages": [{"role": "user", "content": text}], "stream": True}
    with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def stream(live: Live, **body: Any) -> list[dict[str, Any]]:
    """All chunks of a stream, which must end with [DONE]."""
    with live.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache"
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def ending_prompt() -> tuple[str, int]:
    """A prompt after which the greedy fake model ends by itself, and after how many characters."""
    for number in range(100):
        text = answer(f"p{number}", 30)
        ends = [place for place, char in enumerate(text) if ord(char) % 29 == 0]
        if ends and ends[0] > 3:
            return f"p{number}", ends[0]
    raise AssertionError("the fake model never ends")
