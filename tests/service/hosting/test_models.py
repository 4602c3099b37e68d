"""Several models behind one port: loading, unloading, memory, failures, and what clients see of each."""

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.errors import ModelError
from service.access.keys import Keys
from service.engine.client import EngineClient
from service.errors.errors import Unavailable
from service.hosting.drain import Drain
from service.hosting.entries import ModelEntry
from service.hosting.hosted import HostedModel
from service.observe.metrics import Metrics
from service.settings import Settings
from tests import fakes
from tests.service.hosting.serving import LATE, count, posted, said, serving, states, toml
from tests.service.live import USER, Live, answer, begun, hurried, idle, refused, remaining, running
from tests.waiting import PATIENCE, eventually

COMPLETIONS, LOAD, UNLOAD = "/v1/completions", "/v1/models/load", "/v1/models/unload"


def ends_whole(lines: Iterator[str], n: int) -> bool:
    """Whether a stream of LONG that has begun ends as the whole answer does."""
    *chunks, done = remaining(lines)
    text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
    return done == "[DONE]" and len(text) > n // 2 and answer("long", n).endswith(text)


def facts(live: Live, request_id: str) -> dict[str, Any]:
    return live.http.get(f"/v1/requests/{request_id}").json()


def waits(live: Live, request_id: str, reason: str) -> bool:
    found = facts(live, request_id)
    return (found.get("state"), found.get("reason")) == ("preparing", reason)


# Choosing


def test_the_name_chooses_the_model_and_the_first_is_meant_without_one(tmp_path: Path) -> None:
    entries = {"a": {"aliases": ["small"], "max_model_len": 40}, "b": {"source": "recite", "max_model_len": 80}}
    with serving(tmp_path, entries) as live:
        assert states(live) == {"a": "ready", "small": "ready", "b": "ready"}
        cards = {card["id"]: card for card in live.http.get("/v1/models").json()["data"]}
        assert [(card["root"], card["max_model_len"]) for card in cards.values()] == [("a", 40), ("a", 40), ("b", 80)]
        for name, root in (("a", "a"), ("small", "a"), ("b", "b"), (None, "a")):
            reply = live.post("/v1/chat/completions", {"messages": USER, "max_tokens": 4, "model": name}).json()
            text = "hi" if root == "b" else answer("u:hi;a:", 4)
            assert (reply["model"], reply["choices"][0]["message"]["content"]) == (name or "a", text)
        assert live.post("/tokenize", {"prompt": "x", "model": "b"}).json()["max_model_len"] == 80
        error = refused(live, COMPLETIONS, {"prompt": "hi", "model": "c"}, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"].endswith("served: a, small, b")


def test_each_model_has_its_own_metrics(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {}, "c": LATE}) as live:
        said(live, "a", "123", 5)
        said(live, "a", "123", 5)
        said(live, "b", "12", 7)
        live.post(COMPLETIONS, {"prompt": "x", "model": "nobody"})
        eventually(lambda: live.metric("noria_requests_total", outcome="length") == 3, "all have ended")
        found = {
            name: {model: live.metric(f"noria_{name}", model=model, **labels) for model in "abc"}
            for name, labels in (
                ("requests_total", {"outcome": "length"}),
                ("prompt_tokens_total", {}),
                ("generated_tokens_total", {}),
                ("time_to_first_token_seconds_count", {}),
            )
        }
        assert found == {
            "requests_total": {"a": 2, "b": 1, "c": 0},
            "prompt_tokens_total": {"a": 6, "b": 2, "c": 0},
            "generated_tokens_total": {"a": 10, "b": 7, "c": 0},
            "time_to_first_token_seconds_count": {"a": 2, "b": 1, "c": 0},
        }
        assert live.metric("noria_requests_total", model="", outcome="refused") == 1
        assert [count(live, "loads", model=model, outcome="ok") for model in "abc"] == [1, 1, 0]
        assert [live.metric("noria_model_memory_bytes", model=model) for model in "abc"] == [1, 1, 0]
        theirs = live.http.get("/metrics", params={"names": "vllm"}).text
        assert 'vllm:prompt_tokens_total{engine="0",model_name="b"} 2.0' in theirs
        assert 'model_name="c"' not in theirs, "it was never loaded"


def test_the_events_of_the_engine_are_those_of_the_model_in_the_query(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {"source": "slow"}}) as live, begun(live, model="b"):
        for name, n in (("a", 0), ("b", 1), (None, 0)):
            query = {} if name is None else {"model": name}
            with live.http.stream("GET", "/v1/engine/events", params=query) as response:
                line = next(line for line in response.iter_lines() if line.startswith("data: "))
            event = json.loads(line.removeprefix("data: "))
            assert (event["state"], event["running"]) == ("ready", n)
        assert live.http.get("/v1/engine/events", params={"model": "c"}).status_code == 404


# Loading


def test_requests_for_one_model_load_it_once_and_wait_for_it(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {"source": "large", **LATE}}) as live, ExitStack() as stack:
        assert states(live) == {"a": "ready", "b": "unloaded"}
        body = {"model": "b", "prompt": "hi", "max_tokens": 5}
        futures = [stack.enter_context(posted(live, COMPLETIONS, body, **{"x-request-id": f"r-{n}"})) for n in range(2)]
        eventually(lambda: live.model("b").waiting.total == 2, "both wait")
        eventually(lambda: waits(live, "r-0", "loading") and waits(live, "r-1", "loading"), "clients see that")
        eventually(lambda: live.http.get("/v1/models/b").json().get("stage") == "loading weights", "the stage")
        card = live.http.get("/v1/models/b").json()
        assert (card["state"], card["progress"]) == ("loading", 0.5)
        assert live.http.get("/ready").status_code == 200
        assert said(live, "a") == answer("hi", 5), "the others serve meanwhile"
        with hurried():
            found = [future.result(PATIENCE).json()["choices"][0]["text"] for future in futures]
        assert found == [answer("hi", 5)] * 2
        assert (count(live, "loads", model="b", outcome="ok"), len(live.hosts)) == (1, 2)
        assert live.model("b").waiting.total == 0


def test_a_stream_of_a_model_that_is_not_loaded_is_whole(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": LATE}) as live:
        events = live.events(COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5})
        assert "".join(item["text"] for event in events for item in event["choices"]) == answer("hi", 5)


def test_as_many_requests_may_wait_for_a_load_as_for_an_engine(tmp_path: Path) -> None:
    body = {"model": "a", "prompt": "hi", "max_tokens": 5}
    with serving(tmp_path, {"a": {"source": "large", "max_queue": 1, **LATE}}) as live, ExitStack() as stack:
        future = stack.enter_context(posted(live, COMPLETIONS, body))
        eventually(lambda: live.model("a").waiting.total == 1, "it waits")
        response = live.post(COMPLETIONS, body)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
        with hurried():
            assert future.result(PATIENCE).status_code == 200


def test_a_client_that_leaves_does_not_stop_the_load(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"source": "large", **LATE}}) as live:
        with pytest.raises(httpx.ReadTimeout):
            live.post(COMPLETIONS, {"model": "a", "prompt": "hi"}, timeout=0.2)
        eventually(lambda: live.model("a").waiting.total == 0, "the client is forgotten")
        assert states(live) == {"a": "loading"}
        with hurried():
            eventually(lambda: states(live) == {"a": "ready"}, "it is loaded")


def test_a_load_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"source": "large", "load_timeout": 1, **LATE}, "b": {}}) as live:
        response = live.post(COMPLETIONS, {"model": "a", "prompt": "hi"})
        error = response.json()["error"]
        assert response.status_code == 503
        assert error["code"] in ("model_loading", "model_failed")
        assert int(response.headers["retry-after"]) >= 1
        with hurried():
            eventually(lambda: states(live)["a"] == "failed", "the engine has ended")
        assert "--load-timeout" in live.http.get("/v1/models/a").json()["reason"]
        assert said(live, "b") == answer("hi", 5)


def test_clients_load_and_unload(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": LATE, "b": {}}) as live:
        card = live.post(LOAD, {"model": "a"}).json()
        assert (card["id"], card["state"], card["memory_bytes"]) == ("a", "ready", 1)
        assert live.post(LOAD, {"model": "a"}).json()["state"] == "ready"
        assert count(live, "loads", model="a", outcome="ok") == 1
        card = live.post(UNLOAD, {"model": "a"}).json()
        assert (card["state"], "max_model_len" in card) == ("unloaded", False)
        assert live.post(UNLOAD, {"model": "a"}).json()["state"] == "unloaded"
        assert count(live, "unloads", model="a", reason="request") == 1
        assert live.metric("noria_model_memory_bytes", model="a") == 0
        for path in (LOAD, UNLOAD):
            assert refused(live, path, {"model": "c"}, 404)["code"] == "model_not_found"
            assert refused(live, path, {})["param"] == "model"
            assert refused(live, path, {"model": "a", "now": True})["param"] == "now"
        assert said(live, "a") == answer("hi", 5)


def test_a_server_with_one_model_neither_loads_nor_unloads() -> None:
    with running() as live:
        for path in (LOAD, UNLOAD):
            assert refused(live, path, {"model": "fake"})["code"] == "one_model"
        assert live.http.get("/v1/models/fake").json()["state"] == "ready"


def test_an_unload_waits_for_running_requests_and_the_next_request_loads_again(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"source": "slow"}}) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="a", max_tokens=300))
        unloading = stack.enter_context(posted(live, UNLOAD, {"model": "a"}))
        eventually(lambda: states(live) == {"a": "draining"}, "it waits")
        later = stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5}))
        eventually(lambda: live.model("a").waiting.total == 1, "a request comes meanwhile")
        assert not unloading.done()
        with hurried():
            assert ends_whole(lines, 300)
            assert unloading.result(PATIENCE).status_code == 200
            assert later.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert (count(live, "loads", model="a", outcome="ok"), count(live, "unloads", model="a", reason="request")) == (
            2,
            1,
        )


def test_an_unload_while_it_loads_leaves_no_request_without_an_answer(tmp_path: Path) -> None:
    """Requests wait for the load when it comes; they are answered, whether by this load or by the next."""
    body = {"model": "a", "prompt": "hi", "max_tokens": 5}
    with serving(tmp_path, {"a": {"source": "large", **LATE}}) as live, ExitStack() as stack:
        asked = [stack.enter_context(posted(live, COMPLETIONS, body)) for _ in range(8)]
        eventually(lambda: live.model("a").waiting.total == 8, "they wait")
        unloading = stack.enter_context(posted(live, UNLOAD, {"model": "a"}))
        with hurried():
            replies = [future.result(PATIENCE) for future in asked]
            assert [reply.status_code for reply in replies] == [200] * 8, [reply.text for reply in replies]
            assert unloading.result(PATIENCE).status_code == 200


# Memory


def test_the_model_that_was_used_longest_ago_makes_place(tmp_path: Path) -> None:
    with serving(tmp_path, dict.fromkeys("abc", LATE), memory_budget=2) as live:
        for name in "aba":
            said(live, name)
        eventually(idle(live), "they are idle")
        assert said(live, "c") == answer("hi", 5)
        assert states(live) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert [count(live, "unloads", model=name, reason="memory") for name in "abc"] == [0, 1, 0]
        assert live.metric("noria_model_memory_bytes") == 2


def test_several_models_make_place_for_a_large_one(tmp_path: Path) -> None:
    with serving(tmp_path, dict.fromkeys("abc", LATE), {"c": 3}, memory_budget=4) as live:
        for name in "abc":
            assert said(live, name) == answer("hi", 5)
        assert states(live)["c"] == "ready"
        assert list(states(live).values()).count("ready") == 2


def test_what_does_not_fit_at_the_start_is_loaded_when_it_is_used(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {}, "c": {}}, memory_budget=2) as live:
        assert states(live) == {"a": "ready", "b": "ready", "c": "unloaded"}
        assert said(live, "c") == answer("hi", 5)


def test_a_request_waits_for_memory_until_another_model_is_idle(tmp_path: Path) -> None:
    """Neither the busy model nor the pinned one makes place."""
    entries = {"a": {"pin": True}, "b": {"source": "slow"}, "c": LATE}
    with serving(tmp_path, entries, memory_budget=2) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="b", max_tokens=300))
        body = {"model": "c", "prompt": "hi", "max_tokens": 5}
        waiting = stack.enter_context(posted(live, COMPLETIONS, body, **{"x-request-id": "patient"}))
        eventually(lambda: waits(live, "patient", "memory"), "it waits for memory")
        card = live.http.get("/v1/models/c").json()
        assert (card["state"], card["stage"]) == ("loading", "waiting for memory")
        assert states(live) == {"a": "ready", "b": "ready", "c": "loading"}
        with hurried():
            assert ends_whole(lines, 300)
            assert waiting.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert states(live) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert [count(live, "unloads", model=name, reason="memory") for name in "abc"] == [0, 1, 0]


def test_a_model_whose_engine_is_replaced_makes_place_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 3600.0)
    with serving(tmp_path, {"a": {}, "b": LATE}, memory_budget=1) as live:
        live.hosts[0].kill()
        eventually(lambda: states(live)["a"] == "restarting", "its engine is gone")
        assert said(live, "b") == answer("hi", 5)
        assert states(live) == {"a": "unloaded", "b": "ready"}


def test_a_request_that_is_refused_after_a_load_leaves_its_model_idle(tmp_path: Path) -> None:
    """Another model waits for the memory meanwhile."""
    entries = {"a": {"source": "large", **LATE}, "b": LATE}
    with serving(tmp_path, entries, memory_budget=1) as live, ExitStack() as stack:
        first = stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "x" * 9000, "max_tokens": 1}))
        eventually(lambda: live.model("a").waiting.total == 1, "it waits for the load")
        second = stack.enter_context(posted(live, COMPLETIONS, {"model": "b", "prompt": "hi", "max_tokens": 5}))
        eventually(lambda: states(live)["b"] == "loading", "the other one waits for memory")
        with hurried():
            assert first.result(PATIENCE).status_code == 400
            assert second.result(PATIENCE).status_code == 200


def test_a_model_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": LATE, "c": {"pin": True}}, {"b": 9, "c": 2}, memory_budget=4) as live:
        for _ in range(2):
            response = live.post(COMPLETIONS, {"model": "b", "prompt": "hi"})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "model_does_not_fit")
            assert int(response.headers["retry-after"]) >= 1
            assert all(word in error["message"] for word in ("b", "9", "--memory-budget", "4"))
        assert states(live)["b"] != "loading"
        assert [said(live, name) for name in "ac"] == [answer("hi", 5)] * 2


def test_a_model_that_does_not_fit_beside_pinned_ones_is_refused(tmp_path: Path) -> None:
    entries = {"a": {"pin": True}, "b": LATE, "c": {}}
    with serving(tmp_path, entries, {"a": 2, "b": 3}, memory_budget=4) as live:
        response = live.post(COMPLETIONS, {"model": "b", "prompt": "hi"})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "model_does_not_fit")
        assert int(response.headers["retry-after"]) >= 1
        assert all(word in error["message"] for word in ("b", "3", "pinned models leave 2", "--memory-budget"))
        assert states(live) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert [count(live, "loads", model="b", outcome=outcome) for outcome in ("ok", "error")] == [0, 0]


# Failures


def test_a_load_that_fails_harms_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.hosted.BACKOFF_SECONDS", (3600.0, 3600.0))
    entries = {"a": {}, "missing": {"source": "broken"}, "faulty": {"source": "crash", **LATE}}
    with serving(tmp_path, entries) as live:
        assert states(live) == {"a": "ready", "missing": "failed", "faulty": "unloaded"}
        assert live.http.get("/ready").status_code == 200
        reason = live.http.get("/v1/models/missing").json()["reason"]
        assert reason == "found nothing at 'broken', expected a model"
        for name in ("missing", "faulty", "faulty"):
            response = live.post(COMPLETIONS, {"model": name, "prompt": "hi"})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "model_failed")
            assert int(response.headers["retry-after"]) >= 1
            assert live.http.get(f"/v1/models/{name}").json()["reason"] in error["message"]
            assert "\n" not in error["message"]
        assert [count(live, "loads", model=name, outcome="error") for name in entries] == [0, 1, 1], "it waits a while"
        assert live.metric("noria_model_memory_bytes") == 1
        assert said(live, "a") == answer("hi", 5)
        live.model("faulty")._retry_at = 0.0  # the pause is over
        assert refused(live, COMPLETIONS, {"model": "faulty", "prompt": "hi"}, 503)["code"] == "model_failed"
        assert count(live, "loads", model="faulty", outcome="error") == 2


def test_a_failed_model_that_can_be_loaded_again_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.hosted.BACKOFF_SECONDS", (0.0, 0.0))
    works = fakes.create_fake
    monkeypatch.setattr(fakes, "create_fake", fakes.create_broken)
    with serving(tmp_path, {"a": {}, "b": {}}, wait="unloaded") as live:
        eventually(lambda: set(states(live).values()) == {"failed"}, "none can be loaded")
        assert live.running()
        assert live.http.get("/ready").json()["status"] == "failed"
        monkeypatch.setattr(fakes, "create_fake", works)
        assert said(live, "b") == answer("hi", 5)
        assert states(live) == {"a": "failed", "b": "ready"}
        assert "reason" not in live.http.get("/v1/models/b").json()
        assert live.http.get("/ready").status_code == 200, "one that serves is enough"


def test_a_plan_that_fails_is_a_load_that_fails(tmp_path: Path) -> None:
    """Also at the start: a model without files keeps no other from serving."""

    def need(settings: Settings, budget: int, n_models: int) -> Any:
        raise ModelError("found nothing at 'x', expected a model")

    path = tmp_path / "models.toml"
    path.write_text(toml({"a": {}}))
    with running(models=path, need=need, wait="unloaded") as live:
        eventually(lambda: states(live) == {"a": "failed"}, "it has failed")
        assert live.running()
        error = refused(live, COMPLETIONS, {"prompt": "hi"}, 503)
        assert error["code"] == "model_failed"
        assert "found nothing at 'x'" in error["message"]


def test_the_pause_after_a_failed_load_doubles() -> None:
    async def pauses() -> list[int]:
        entry = ModelEntry(Settings(model="a"), on_demand=True)
        client, metrics = EngineClient(lambda: fakes.EngineThread("tests.fakes:create_fake")), Metrics()

        async def load(settings: Settings, client: EngineClient) -> Any:
            raise AssertionError

        model = HostedModel(entry, client, metrics.of_model("a"), Drain(1.0), load, lambda: None)
        found = []
        for _ in range(7):
            await model.fail(ModelError("it is broken"))
            with pytest.raises(Unavailable, match="could not be loaded: it is broken") as raised:
                model.check_failure()
            found.append(int(raised.value.headers["retry-after"]))
        return found

    assert asyncio.run(pauses()) == [2, 4, 8, 16, 32, 60, 60]


def test_a_model_whose_engine_died_five_times_has_failed_while_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 0.0)
    monkeypatch.setattr("service.hosting.hosted.BACKOFF_SECONDS", (3600.0, 3600.0))
    with serving(tmp_path, {"a": {}, "b": {}}) as live:
        with monkeypatch.context() as patch:
            patch.setattr(fakes, "create_fake", fakes.create_broken)
            live.hosts[0].kill()  # that of the first model
            eventually(lambda: states(live)["a"] == "failed", "it has failed")
        assert live.running()
        assert "5 engines in a row" in live.http.get("/v1/models/a").json()["reason"]
        assert refused(live, COMPLETIONS, {"model": "a", "prompt": "hi"}, 503)["code"] == "model_failed"
        assert said(live, "b") == answer("hi", 5)
        assert live.http.get("/ready").status_code == 200
        assert live.metric("noria_engine_restarts_total", model="a") >= 4
        assert live.metric("noria_engine_restarts_total", model="b") == 0
        live.model("a")._retry_at = 0.0  # the pause is over
        assert said(live, "a") == answer("hi", 5)


# Idle models


def test_an_idle_model_is_unloaded_and_a_busy_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.models.WATCH_SECONDS", 0.01)
    with serving(tmp_path, {"a": {"source": "slow", "idle_unload": 0, **LATE}, "b": {}}) as live:
        with begun(live, model="a", max_tokens=60) as lines:
            assert ends_whole(lines, 60), "many looks at it, and it goes on"
        eventually(lambda: states(live) == {"a": "unloaded", "b": "ready"}, "then it is idle")
        assert count(live, "unloads", model="a", reason="idle") == 1
        assert said(live, "a") == answer("hi", 5)
        eventually(lambda: count(live, "unloads", model="a", reason="idle") == 2, "it is idle again")


def test_keep_alive_takes_the_place_of_idle_unload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.models.WATCH_SECONDS", 0.01)
    with serving(tmp_path, {"a": LATE, "b": {"idle_unload": "1h"}, "c": {"idle_unload": 0, **LATE}}) as live:
        assert live.post(LOAD, {"model": "b", "keep_alive": 0}).status_code == 200
        eventually(lambda: states(live)["b"] == "unloaded", "0 is at once")
        assert live.post(LOAD, {"model": "c", "keep_alive": -1}).json()["state"] == "ready"
        assert live.post(LOAD, {"model": "a", "keep_alive": "10m"}).json()["state"] == "ready"
        assert live.model("a").idle_seconds == 600
        for _ in range(2):
            assert said(live, "b") == answer("hi", 5)
            eventually(lambda: states(live)["b"] == "unloaded", "it is looked at")
        assert states(live) == {"a": "ready", "b": "unloaded", "c": "ready"}, "-1 is for ever"


@pytest.mark.parametrize("value", ["soon", "", [], {}, True, 1e300, 10**400])
def test_a_wrong_keep_alive_is_named(tmp_path: Path, value: Any) -> None:
    with serving(tmp_path, {"a": {}}) as live:
        error = refused(live, LOAD, {"model": "a", "keep_alive": value})
        assert error["param"] == "keep_alive"


# Changes of the file


def test_sighup_adds_removes_changes_and_keeps_models(tmp_path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {
        "kept": {"source": "slow"},
        "changed": {"max_model_len": 40},
        "removed": {"source": "slow"},
    }
    with serving(tmp_path, entries) as live, ExitStack() as stack:
        kept, removed = live.model("kept"), live.model("removed")
        streams = [stack.enter_context(begun(live, model=name, max_tokens=300)) for name in ("kept", "removed")]
        entries |= {"changed": {"max_model_len": 80}, "added": {}, "late": {**LATE}}
        del entries["removed"]
        live.reload(toml(entries))
        ready = {"kept": "ready", "changed": "ready", "added": "ready", "late": "unloaded"}
        eventually(lambda: states(live) == ready, "they are loaded")
        assert live.model("kept") is kept
        assert count(live, "loads", model="kept", outcome="ok") == 1
        assert live.http.get("/v1/models/changed").json()["max_model_len"] == 80
        assert [said(live, name) for name in ("changed", "added", "late")] == [answer("hi", 5)] * 3
        assert refused(live, COMPLETIONS, {"model": "removed", "prompt": "hi"}, 404)["code"] == "model_not_found"
        with hurried():
            assert [ends_whole(lines, 300) for lines in streams] == [True, True]
        eventually(lambda: removed.client.state == "stopped", "the one that is gone is closed")
        eventually(idle(live), "nothing runs")


def test_a_file_with_a_mistake_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, {"a": {}, "b": {}}) as live:
        before = [live.model(name) for name in "ab"]
        for text in ("[[models]\n", toml({"a": {"max_model_len": 0}}), toml({"a": {"aliases": ["a"]}}), ""):
            caplog.clear()
            live.reload(text)
            assert "reload: no change of the models: " in caplog.text
        assert [live.model(name) for name in "ab"] == before
        assert states(live) == {"a": "ready", "b": "ready"}


def test_a_model_that_changes_while_it_is_busy_waits_for_its_own_memory(tmp_path: Path) -> None:
    """The budget holds while the old one finishes its requests."""
    with serving(tmp_path, {"a": {"source": "slow"}}, memory_budget=1) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="a", max_tokens=300))
        live.reload(toml({"a": {"source": "slow", "max_model_len": 99}}))
        waiting = stack.enter_context(
            posted(live, COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5}, **{"x-request-id": "new"})
        )
        eventually(lambda: waits(live, "new", "memory"), "it waits for memory")
        with hurried():
            assert ends_whole(lines, 300)
            assert waiting.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert live.http.get("/v1/models/a").json()["max_model_len"] == 99


def test_a_request_that_waits_for_a_model_that_is_removed_gets_a_404(tmp_path: Path) -> None:
    entries = {"a": {"source": "large", **LATE}, "b": {}}
    with serving(tmp_path, entries) as live, ExitStack() as stack:
        waiting = stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "hi"}))
        eventually(lambda: live.model("a").waiting.total == 1, "it waits")
        removed = live.model("a")
        live.reload(toml({"b": {}}))
        with hurried():
            reply = waiting.result(PATIENCE)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        eventually(lambda: removed.client.state == "stopped", "it is closed")
        assert states(live) == {"b": "ready"}


# Keys


def test_keys_see_and_use_only_their_models(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys: list[dict[str, Any]] = [
        {"name": "one", "key": "1", "models": ["small"]},
        {"name": "all", "key": "2", "loads_models": True},
        {"name": "none", "key": "3", "models": []},
    ]
    path.write_text(json.dumps({"keys": keys}))
    entries = {"a": {}, "b": {"aliases": ["small"]}}
    one, all_, none = ({"authorization": f"Bearer {number}"} for number in "123")
    with serving(tmp_path, entries, api_key_file=path) as live:
        assert set(states(live, **one)) == {"b", "small"}
        assert set(states(live, **all_)) == {"a", "b", "small"}
        body = {"prompt": "hi", "max_tokens": 3}
        for name in ("a", "nobody"):
            for found in (
                live.post(COMPLETIONS, {**body, "model": name}, headers=one),
                live.post("/v1/chat/completions", {"messages": USER, "model": name}, headers=one),
                live.post("/tokenize", {"prompt": "hi", "model": name}, headers=one),
                live.post(LOAD, {"model": name}, headers=one),
                live.http.get(f"/v1/models/{name}", headers=one),
                live.http.get("/v1/engine/events", params={"model": name}, headers=one),
            ):
                message = f'the model "{name}" does not exist here; served: b, small'
                error = found.json()["error"]
                assert (found.status_code, error["code"], error["message"]) == (404, "model_not_found", message)
        assert live.post(COMPLETIONS, body, headers=one).json()["model"] == "b", "the first that it may use"
        assert live.post(COMPLETIONS, body, headers=all_).json()["model"] == "a"
        for path_, sent in ((LOAD, {"model": "b"}), (UNLOAD, {"model": "b"})):
            response = live.post(path_, sent, headers=one)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "not_allowed")
        assert live.post(UNLOAD, {"model": "b"}, headers=all_).status_code == 200
        assert live.post(COMPLETIONS, body, headers=none).status_code == 404
        assert live.http.get("/v1/models", headers=none).status_code in (200, 404)


def test_the_models_of_a_key_are_those_of_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[[keys]]\nname = "one"\nkey = "1"\nmodels = ["a", "b"]\nloads_models = true\n')
    (entry,) = (key.entry for key in [Keys((), path).find("1")] if key is not None)
    assert (entry.models, entry.loads_models, entry.loads_adapters) == (frozenset("ab"), True, False)


# Adapters


def test_adapters_outlive_an_unload(tmp_path: Path) -> None:
    for name in ("sql", "law"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
    folder = str(tmp_path / "adapters")
    entries = {"a": {}, "b": {"lora": [f"law={folder}/law"], "lora_dir": folder, **LATE}}
    with serving(tmp_path, entries) as live:
        body = {"lora_name": "sql", "lora_path": "sql", "model": "b"}
        assert live.post("/v1/load_lora_adapter", body).json()["parent"] == "b", "its model is loaded for it"
        for _ in range(2):
            for name in ("sql", "law"):
                assert said(live, name, n=9) == answer("hi", 9, adapter=f"{folder}/{name}")
            assert live.post(UNLOAD, {"model": "b"}).status_code == 200
            assert states(live) == {"a": "ready", "b": "unloaded", "law": "unloaded", "sql": "unloaded"}
            assert live.http.get("/v1/models/sql").json()["parent"] == "b"
        assert live.post("/v1/unload_lora_adapter", {"lora_name": "sql", "model": "b"}).status_code == 200
        assert "sql" not in states(live)
        assert said(live, "law", n=9) == answer("hi", 9, adapter=f"{folder}/law")
        for name in ("a", "b", "law"):
            error = refused(live, "/v1/load_lora_adapter", {**body, "lora_name": name}, 409)
            assert error["code"] == "adapter_exists"


# The end


def test_loads_and_unloads_leave_nothing_behind(tmp_path: Path) -> None:
    def there(live: Live) -> tuple[int, int, int]:
        """Tasks of the event loop, threads, and descriptors of this process."""
        found: list[int] = []
        counted = threading.Event()
        loop = live.state.drain.expired.get_loop()

        def look() -> None:
            found.append(len(asyncio.all_tasks(loop)))
            counted.set()

        loop.call_soon_threadsafe(look)
        assert counted.wait(PATIENCE)
        return found[0], threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    with serving(tmp_path, {"a": {}, "b": LATE}) as live:

        def round() -> None:
            assert live.post(LOAD, {"model": "b"}).status_code == 200
            assert live.post(UNLOAD, {"model": "b"}).status_code == 200

        round()
        before = there(live)
        for _ in range(50):
            round()
        eventually(lambda: all(now <= then for now, then in zip(there(live), before, strict=True)), "nothing is left")
        assert count(live, "loads", model="b", outcome="ok") == 51


def test_a_server_that_stops_while_models_load_and_wait_ends_in_peace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"c": {"source": "slow"}, "a": {"source": "large", **LATE}, "b": LATE}
    ending = ExitStack()
    with ending, caplog.at_level(logging.ERROR), serving(tmp_path, entries, memory_budget=2, drain_timeout=0.1) as live:
        with ExitStack() as stack:
            stack.enter_context(begun(live, model="c", max_tokens=3000))
            asked = [stack.enter_context(posted(live, COMPLETIONS, {"model": name, "prompt": "hi"})) for name in "ab"]
            eventually(lambda: live.model("b").lacks_memory, "it waits for memory, while the others load and serve")
            live.state.drain.expired.get_loop().call_soon_threadsafe(live.server.handle_exit, signal.SIGTERM, None)
            replies = [future.result(PATIENCE) for future in asked]
            assert [reply.json()["error"]["code"] for reply in replies] == ["shutting_down"] * 2
        ending.enter_context(hurried())  # a thread in a load would finish that first
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
