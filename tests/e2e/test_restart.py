"""Responses in the background of a server that is killed, and of the next one on the same file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.server import LiveServer, serving

PATH = "/v1/responses"
STORY = {"input": "Tell me a story.", "background": True, "max_output_tokens": 48, "temperature": 0.9}


def events(server: LiveServer, id: str, after: int | None = None) -> list[dict[str, Any]]:
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    response = server.http.get(f"{PATH}/{id}", params=query)
    assert response.status_code == 200, response.text
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in response.text.split("\n\n")[:-1]]


def begun(server: LiveServer) -> tuple[str, list[dict[str, Any]]]:
    """A response that has sent some events, and these."""
    with server.http.stream("POST", PATH, json=STORY | {"stream": True}) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        got = [json.loads(next(lines)) for _ in range(12)]
    return got[0]["response"]["id"], got


def told(sent: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events without what a clock or a cache changes."""
    for event in sent:
        response = event.get("response")
        facts = response and {name: response[name] for name in ("id", "created_at", "status", "output", "model")}
        yield {name: part for name, part in event.items() if name not in ("timings", "response")} | {"response": facts}


def test_what_ran_when_the_server_was_killed_has_failed(tmp_path: Path) -> None:
    flags = ["--responses-store", str(tmp_path / "responses.db")]
    with serving(*flags, paced=True) as server, server.slow():
        id, _ = begun(server)
        server.kill()
        server.process.wait()
    with serving(*flags) as server:
        response = server.http.get(f"{PATH}/{id}").json()
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert server.http.get(f"{PATH}/{id}", params={"stream": "true"}).status_code == 400
