"""Responses in the background of a live server, as its clients see them."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.service.live import Live
from tests.waiting import eventually

PATH = "/v1/responses"
LONG: dict[str, Any] = {"input": "hi", "background": True, "max_output_tokens": 60, "temperature": 0}


def state(live: Live, id: str, **options: Any) -> dict[str, Any]:
    response = live.http.get(f"{PATH}/{id}", **options)
    assert response.status_code == 200, response.text
    return response.json()


def ended(live: Live, id: str, **options: Any) -> dict[str, Any]:
    eventually(lambda: state(live, id, **options)["status"] not in ("queued", "in_progress"), "the end")
    return state(live, id, **options)


def events(live: Live, id: str, after: int | None = None) -> list[dict[str, Any]]:
    query = "stream=true" + ("" if after is None else f"&starting_after={after}")
    return parsed(live.http.get(f"{PATH}/{id}?{query}"))


def parsed(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *frames, rest = response.text.split("\n\n")
    assert rest == ""
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in frames]


def killed(live: Live, path: Path, copy: Path) -> None:
    """Copy the file, as a server that is killed now leaves it."""
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
