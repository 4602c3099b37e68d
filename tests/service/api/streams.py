"""Streams of the fake model, read to their ends."""

from typing import Any

from tests.service.live import Live, answer


def rendered(text: str) -> str:
    """One user message in the fake chat format."""
    return f"u:{text};a:"


def chat_stream(live: Live, text: str, **body: Any) -> list[dict[str, Any]]:
    return live.events("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body})


def stream(live: Live, **body: Any) -> list[dict[str, Any]]:
    return live.events("/v1/completions", body)


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
