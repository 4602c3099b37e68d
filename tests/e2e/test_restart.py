"""Responses in the background of a server that is killed, and of the next one on the same file."""

import json
from pathlib import Path

from tests.e2e.server import LiveServer, serving

PATH = "/v1/responses"
STORY = {"input": "Tell me a story.", "background": True, "max_output_tokens": 48, "temperature": 0.9}


def begun(server: LiveServer) -> str:
    """A response that has sent some events."""
    with server.http.stream("POST", PATH, json=STORY | {"stream": True}) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        got = [json.loads(next(lines)) for _ in range(12)]
    id: str = got[0]["response"]["id"]
    return id


def test_what_ran_when_the_server_was_killed_has_failed(short_model: Path, tmp_path: Path) -> None:
    flags = [str(short_model), "--responses-store", str(tmp_path / "responses.db")]
    with serving(*flags, paced=True) as server, server.slow():
        id = begun(server)
        server.kill()
        server.process.wait()
    with serving(*flags) as server:
        response = server.http.get(f"{PATH}/{id}").json()
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert server.http.get(f"{PATH}/{id}", params={"stream": "true"}).status_code == 400
