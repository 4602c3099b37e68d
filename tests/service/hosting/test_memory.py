"""The memory of several models: who makes place, who stays, and who waits."""

import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from service.hosting import memory
from service.settings import Settings
from tests.service.hosting.serving import LATE, count, ends_whole, posted, said, serving, states, waits
from tests.service.live import answer, begun, hurried, idle
from tests.waiting import PATIENCE, eventually

COMPLETIONS = "/v1/completions"


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
        lines = stack.enter_context(begun(live, model="b", max_tokens=1000))
        body = {"model": "c", "prompt": "hi", "max_tokens": 5}
        waiting = stack.enter_context(posted(live, COMPLETIONS, body, **{"x-request-id": "patient"}))
        eventually(lambda: waits(live, "patient", "memory"), "it waits for memory")
        assert [live.metric("noria_requests_waiting", model=name) for name in "abc"] == [0, 0, 1]
        card = live.http.get("/v1/models/c").json()
        assert (card["state"], card["stage"]) == ("loading", "waiting for memory")
        assert states(live) == {"a": "ready", "b": "ready", "c": "loading"}
        with hurried():
            assert ends_whole(lines, 1000)
            assert waiting.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert live.metric("noria_requests_waiting", model="c") == 0
        assert states(live) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert [count(live, "unloads", model=name, reason="memory") for name in "abc"] == [0, 1, 0]


def test_idle_models_stay_while_their_memory_is_not_enough(tmp_path: Path) -> None:
    """Or each request for them would load them again, to no use."""
    entries = {"a": {"source": "slow"}, "b": {}, "c": LATE}
    with serving(tmp_path, entries, {"c": 3}, memory_budget=3) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        waiting = stack.enter_context(posted(live, COMPLETIONS, {"model": "c", "prompt": "hi", "max_tokens": 5}))
        eventually(lambda: states(live)["c"] == "loading", "it waits for memory")
        assert said(live, "b") == answer("hi", 5)
        assert states(live) == {"a": "ready", "b": "ready", "c": "loading"}
        with hurried():
            assert ends_whole(lines, 1000)
            assert waiting.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert [count(live, "unloads", model=name, reason="memory") for name in "abc"] == [1, 1, 0]
        assert count(live, "loads", model="b", outcome="ok") == 1


def test_each_load_is_planned_by_the_files_of_its_time(tmp_path: Path) -> None:
    sizes = {"a": 1}
    with serving(tmp_path, {"a": {}, "b": LATE}, sizes, memory_budget=3) as live:
        assert live.metric("noria_model_memory_bytes") == 1
        sizes["a"] = 2
        assert live.post("/v1/models/unload", {"model": "a"}).status_code == 200
        said(live, "a")
        assert live.metric("noria_model_memory_bytes") == 2


def test_a_load_that_is_refused_changes_no_idle_time(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"pin": True}, "b": LATE}, {"b": 2}, memory_budget=2) as live:
        assert live.post("/v1/models/load", {"model": "b", "keep_alive": 0}).status_code == 503
        assert live.model("b").idle_seconds is None


@pytest.mark.parametrize("n_models", [1, 2, 3])
def test_models_that_are_alike_fit_beside_each_other_on_a_gpu(n_models: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the KV cache of a model that is alone takes all that is left."""
    monkeypatch.setattr(memory, "device_of", lambda wanted: ("cuda", 24 * 2**30))
    budget = 12 * 2**30
    need = memory.need_of(Settings(), budget, n_models)
    assert 0.85 * budget < n_models * need.n_bytes <= budget
    assert need.cache > 2**30


def test_a_wait_for_memory_has_the_time_of_its_own_request_and_is_no_failure(tmp_path: Path) -> None:
    entries = {"a": {"source": "slow"}, "b": {"load_timeout": 3, **LATE}}
    body = {"model": "b", "prompt": "hi", "max_tokens": 5}
    with serving(tmp_path, entries, memory_budget=1) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        first = stack.enter_context(posted(live, COMPLETIONS, body))
        eventually(lambda: live.model("b").waits_for_memory, "it waits for memory")
        time.sleep(1.5)
        second = stack.enter_context(posted(live, COMPLETIONS, body))
        for reply in (first.result(PATIENCE), second.result(PATIENCE)):
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (503, "model_loading")
            assert int(reply.headers["retry-after"]) >= 1
            assert "waits for memory: it needs 1 bytes of --memory-budget 1; models in use hold 1" in error["message"]
            assert reply.elapsed.total_seconds() >= 3
        eventually(lambda: states(live)["b"] == "unloaded", "nobody waits any more")
        assert count(live, "loads", model="b", outcome="error") == 0
        with hurried():
            assert ends_whole(lines, 1000)
            assert said(live, "b") == answer("hi", 5), "at once, without a pause"


def test_a_client_that_has_gone_takes_no_memory(tmp_path: Path) -> None:
    body = {"model": "b", "prompt": "hi", "max_tokens": 5}
    with serving(tmp_path, {"a": {"source": "slow"}, "b": LATE}, memory_budget=1) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        with pytest.raises(httpx.ReadTimeout):
            live.post(COMPLETIONS, body, timeout=0.2)
        eventually(lambda: states(live)["b"] == "unloaded", "nobody waits any more")
        with hurried():
            assert ends_whole(lines, 1000)
        eventually(idle(live), "nothing runs")
        assert states(live) == {"a": "ready", "b": "unloaded"}
        assert count(live, "unloads", model="a", reason="memory") == 0


def test_a_load_that_a_client_asked_for_goes_on_without_the_client(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"source": "slow"}, "b": LATE}, memory_budget=1) as live, ExitStack() as stack:
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        with pytest.raises(httpx.ReadTimeout):
            live.post("/v1/models/load", {"model": "b"}, timeout=0.2)
        assert live.model("b").waits_for_memory
        assert live.metric("noria_requests_waiting", model="b") == 0, "no request waits"
        with hurried():
            assert ends_whole(lines, 1000)
            eventually(lambda: states(live)["b"] == "ready", "it is loaded")


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
