"""`keep_alive` as Ollama has it: models are loaded, stay, and are unloaded."""

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.service.api.ollama.sent import USER, error_of, lines, whole
from tests.service.hosting.serving import LATE, posted, serving, states
from tests.service.live import Live, hurried
from tests.waiting import PATIENCE, eventually

CHAT, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
ONE = {"num_predict": 1}


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.models.WATCH_SECONDS", 0.01)


def test_nothing_to_answer_loads_and_unloads(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": LATE}) as live:
        for path, body in ((CHAT, {"messages": []}), (GENERATE, {})):
            reply = whole(live, path, model="b", **body)
            assert (reply["done"], reply["done_reason"], reply["model"]) == (True, "load", "b")
            assert states(live) == {"a": "ready", "b": "ready"}
            for value in (0, "0", "0s"):
                assert whole(live, path, model="b", keep_alive=value, **body)["done_reason"] == "unload"
                assert states(live)["b"] == "unloaded"
        assert live.post(CHAT, {"model": "b"}).json()["message"] == {"role": "assistant", "content": ""}
        assert live.post(EMBED, {"model": "b", "input": [], "keep_alive": 0}).json()["embeddings"] == []
        assert states(live)["b"] == "unloaded"


def test_a_model_is_unloaded_after_its_answer(tmp_path: Path) -> None:
    """Whoever asks next loads it again, and it then stays as its entry says."""
    with serving(tmp_path, {"a": {}, "b": LATE}) as live:
        for path, body in ((CHAT, {"messages": USER}), (GENERATE, {"prompt": "hi"}), (EMBED, {"input": "hi"})):
            response = live.post(path, {"model": "b", "keep_alive": 0, **body})
            assert response.status_code == 200
            eventually(lambda: states(live)["b"] == "unloaded", "it is idle")
            assert whole(live, CHAT, model="b", messages=USER, options=ONE)["done"]
            assert live.model("b").idle_seconds is None
            assert whole(live, CHAT, model="b", keep_alive=0)["done_reason"] == "unload"


@pytest.mark.parametrize(("value", "seconds"), [("10m", 600), (90, 90), (-1, None), ("-1m", None), (1.5, 1.5)])
def test_a_model_stays_for_so_long(tmp_path: Path, value: Any, seconds: float | None) -> None:
    with serving(tmp_path, {"a": {}, "b": {"idle_unload": "1h"}}) as live:
        lines(live, CHAT, model="b", messages=USER, options=ONE, keep_alive=value)
        assert live.model("b").idle_seconds == seconds
        expires = datetime.fromisoformat(live.http.get("/api/ps").json()["models"][1]["expires_at"])
        left = (expires - datetime.now(UTC)).total_seconds()
        assert left > 1e9 if seconds is None else seconds - 60 < left <= seconds


def test_a_refused_request_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}}) as live:
        ask = {"model": "a", "messages": USER}
        error_of(live, CHAT, {**ask, "keep_alive": 0, "options": {"num_ctx": 10_000}})
        assert live.model("a").idle_seconds is None
        for value in ("soon", "", True, []):
            assert "keep_alive" in error_of(live, CHAT, {**ask, "keep_alive": value})


def test_a_model_that_loads_sends_lines_too(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {"source": "broken", **LATE}, "c": LATE}) as live:
        *_, last = lines(live, CHAT, model="c", messages=USER, options={"num_predict": 3})
        assert 0 < last["load_duration"] <= last["total_duration"]
        assert last["load_duration"] / 1e6 == pytest.approx(last["timings"]["load_ms"], abs=1e-3)
        assert live.http.post(CHAT, json={"model": "b", "messages": USER}).json().keys() == {"error"}


def test_one_model_stays(live: Live) -> None:
    for path, body in ((CHAT, {"messages": USER}), (GENERATE, {}), (CHAT, {}), (EMBED, {"input": "a"})):
        response = live.post(path, {"keep_alive": 0, "options": {"num_predict": 1}, **body})
        assert response.status_code == 200
        assert "keep_alive" in response.headers["x-noria-ignored"].split(", ")
    assert live.post(CHAT, {"keep_alive": 0}).json()["done_reason"] == "load"
    assert live.http.get("/ready").status_code == 200


def test_a_key_that_may_not_load_models(tmp_path: Path) -> None:
    """Home Assistant always sends `keep_alive`: its requests pass, and only an order to unload is refused."""
    keys = tmp_path / "keys.json"
    entries = [{"name": "home", "key": "h"}, {"name": "boss", "key": "b", "loads_models": True}]
    keys.write_text(json.dumps({"keys": entries}))
    with serving(tmp_path, {"a": {}}, api_key_file=keys) as live:
        live.http.headers["authorization"] = "Bearer h"
        ask = {"model": "a", "messages": USER, "keep_alive": "5m", "options": ONE}
        response = live.post(CHAT, ask)
        assert (response.status_code, response.headers["x-noria-ignored"]) == (200, "keep_alive")
        assert live.model("a").idle_seconds is None
        refused = live.post(CHAT, {"model": "a", "keep_alive": 0})
        assert (refused.status_code, "loads_models" in refused.json()["error"]) == (403, True)
        assert "x-noria-ignored" not in refused.headers
        live.http.headers["authorization"] = "Bearer b"
        assert "x-noria-ignored" not in live.post(CHAT, ask).headers
        assert live.model("a").idle_seconds == 300


def test_a_model_that_was_loaded_for_nothing_stays_until_the_client_knows(tmp_path: Path) -> None:
    """Another model waits for its memory, and takes it once the answer is there."""
    entries = {"a": {"source": "large", **LATE}, "b": LATE}
    with serving(tmp_path, entries, memory_budget=1) as live, ExitStack() as stack:
        loaded = stack.enter_context(posted(live, CHAT, {"model": "a"}))
        eventually(lambda: live.model("a").reserved, "it has memory, and loads")
        body = {"model": "b", "messages": USER, "options": ONE, "stream": False}
        other = stack.enter_context(posted(live, CHAT, body))
        eventually(lambda: live.model("b").waits_for_memory, "the other one waits for it")
        with hurried():
            reply = loaded.result(PATIENCE)
            assert (reply.status_code, reply.json().get("done_reason")) == (200, "load"), reply.text
            assert other.result(PATIENCE).status_code == 200
