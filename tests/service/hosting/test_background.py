"""Responses in the background whose model is not loaded: they are queued at once, and computed once it is."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.hosting.serving import LATE, serving, states
from tests.service.live import Live, answer, hurried, refused
from tests.waiting import PATIENCE, eventually

PATH = "/v1/responses"
ENTRIES = {"a": {}, "b": {"source": "large", **LATE}}
BODY: dict[str, Any] = {"model": "b", "input": "hi", "background": True, "max_output_tokens": 9, "temperature": 0}
TEXT = answer("u:hi;a:", 9)


def state(live: Live, id: str) -> dict[str, Any]:
    return live.http.get(f"{PATH}/{id}").json()


def ended(live: Live, id: str) -> dict[str, Any]:
    eventually(lambda: state(live, id)["status"] not in ("queued", "in_progress"), "the end")
    return state(live, id)


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_it_is_queued_while_its_model_loads(tmp_path: Path) -> None:
    with ExitStack() as ending, serving(tmp_path, ENTRIES) as live:
        made = live.post(PATH, BODY).json()
        assert (made["status"], made["model"], made["output"]) == ("queued", "b", [])
        eventually(lambda: states(live)["b"] == "loading", "its model loads")
        assert state(live, made["id"]) == made
        items = live.http.get(f"{PATH}/{made['id']}/input_items").json()["data"]
        assert [part["text"] for item in items for part in item["content"]] == ["hi"]
        ending.enter_context(hurried())
        done = ended(live, made["id"])
        assert (text_of(done), done["created_at"]) == (TEXT, made["created_at"])
        assert live.http.get(f"{PATH}/{made['id']}/input_items").json()["data"] == items


def test_its_stream_begins_while_its_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", 0.05)
    with (
        serving(tmp_path, ENTRIES) as live,
        httpx.Client(base_url=live.url, timeout=PATIENCE) as http,
        http.stream("POST", PATH, json={**BODY, "stream": True}) as response,
    ):
        lines = (line for line in response.iter_lines() if line)
        begun = [next(lines) for _ in range(5)]
        assert begun[4] == ": keep-alive"
        assert states(live)["b"] == "loading"
        with hurried():
            rest = [*begun, *lines]
        events = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: ")]
        kinds = ["response.created", "response.queued", "response.in_progress"]
        assert [event["type"] for event in events][:3] == kinds
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert text_of(events[-1]["response"]) == TEXT
        replayed = live.http.get(f"{PATH}/{events[0]['response']['id']}?stream=true").text
        assert [json.loads(line[6:]) for line in replayed.splitlines() if line.startswith("data: ")] == events


def test_one_that_is_cancelled_or_deleted_while_its_model_loads_ends_at_once(tmp_path: Path) -> None:
    with ExitStack() as ending, serving(tmp_path, ENTRIES) as live:
        cancelled, deleted = (live.post(PATH, BODY).json()["id"] for _ in range(2))
        eventually(lambda: live.model("b").waiting.total == 2, "both wait")
        assert live.post(f"{PATH}/{cancelled}/cancel", {}).json()["status"] == "cancelled"
        assert live.http.delete(f"{PATH}/{deleted}").status_code == 200
        eventually(lambda: live.state.runs.found == {}, "neither waits")
        assert (states(live)["b"], live.model("b").waiting.total) == ("loading", 0)
        assert live.http.get(f"{PATH}/{deleted}").status_code == 404
        ending.enter_context(hurried())


def test_a_load_that_fails_fails_it_and_the_next_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {"source": "broken", **LATE}}) as live:
        failed = ended(live, live.post(PATH, BODY).json()["id"])
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "b could not be loaded" in failed["error"]["message"]
        assert refused(live, PATH, BODY, 503)["code"] == "model_failed"


def test_what_the_store_lacks_is_refused_before_its_model_is_loaded(tmp_path: Path) -> None:
    with serving(tmp_path, ENTRIES) as live:
        body = {**BODY, "previous_response_id": "resp_none"}
        assert refused(live, PATH, body, 400)["code"] == "previous_response_not_found"
        assert states(live)["b"] == "unloaded"
