"""Counts the tokens of the longest prompt that each agent sends, and of the context that its requests need.

`python -m tests.agents.tokens DIR` reads the whole requests in the folder that AGENTS_RECORDS named, and asks a server
with the embedded model how many tokens each of them has: with the model's tokenizer and chat template, tools included.
A request needs a context for its prompt and for the answer that it may have (`max_tokens`).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.agents.edits import LIMITS
from tests.e2e.server import serving

Body = dict[str, Any]
COUNTED: dict[str, tuple[str, tuple[str, ...], Callable[[Body], int]]] = {
    "/v1/messages": (
        "/v1/messages/count_tokens",
        ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "context_management"),
        lambda answer: answer["input_tokens"],
    ),
    "/v1/responses": (
        "/v1/responses/input_tokens",
        ("input", "instructions", "tools", "tool_choice", "reasoning", "text", "parallel_tool_calls"),
        lambda answer: answer["input_tokens"],
    ),
    "/v1/chat/completions": ("/tokenize", ("messages", "tools"), lambda answer: answer["count"]),
}
"""Endpoint -> the endpoint that counts the tokens of its requests, the fields that this one takes, and its number."""


def n_tokens(client: httpx.Client, path: str, body: Body) -> int:
    """The number of tokens of a request's prompt. Raises HTTPStatusError with the server's words."""
    counter, fields, read = COUNTED[path]
    response = client.post(counter, json={name: body[name] for name in fields if name in body})
    assert response.is_success, response.text
    return read(response.json())


def limit(body: Body) -> int:
    """The tokens that the answer may have by the request; 0 if it does not say."""
    return max(body.get(name) or 0 for name in LIMITS)


def requests(folder: Path) -> list[tuple[str, Body]]:
    """The paths and bodies that the records of an agent have as it sent them."""
    exchanges = [each for file in sorted(folder.glob("*.json")) for each in json.loads(file.read_text())]
    paths = [(each["path"].partition("?")[0], each["sent"]) for each in exchanges if each["method"] == "POST"]
    return [(path, sent) for path, sent in paths if path in COUNTED]


def main() -> None:
    with serving() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for folder in sorted(Path(sys.argv[1]).iterdir()):
            counts = [(n_tokens(client, path, body), limit(body)) for path, body in requests(folder)]
            if counts:
                prompt, context = max(count for count, _ in counts), max(map(sum, counts))
                print(f"{folder.name}: prompt {prompt:,}, context {context:,}, {len(counts)} requests", flush=True)


if __name__ == "__main__":
    main()
