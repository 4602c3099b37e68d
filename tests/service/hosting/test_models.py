"""Several models behind one port: which one answers, when it is loaded, and what clients see of each."""

import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.service.hosting.serving import LATE, count, ends_whole, posted, said, serving, states, waits
from tests.service.live import USER, answer, begun, hurried, refused, running
from tests.waiting import PATIENCE, eventually

COMPLETIONS = "/v1/completions"
LOAD = "/v1/models/load"
UNLOAD = "/v1/models/unload"


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


def test_its_events_have_the_state_of_its_card(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {"source": "slow", **LATE}}) as live, ExitStack() as stack:
        events = stack.enter_context(live.http.stream("GET", "/v1/engine/events", params={"model": "b"})).iter_lines()
        told = (json.loads(line.removeprefix("data: "))["state"] for line in events if line.startswith("data: "))
        assert states(live)["b"] == next(told) == "unloaded"
        lines = stack.enter_context(begun(live, model="b", max_tokens=1000))
        assert states(live)["b"] == next(state for state in told if state not in ("unloaded", "loading")) == "ready"
        unload = stack.enter_context(posted(live, UNLOAD, {"model": "b"}))
        assert next(state for state in told if state != "ready") == "draining"
        assert states(live)["b"] == "draining"
        with hurried():
            assert ends_whole(lines, 1000)
        assert unload.result(PATIENCE).status_code == 200
        assert next(state for state in told if state != "draining") == "unloaded"


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
        eventually(lambda: live.hosts[-1].killed, "it is given up")
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
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        unloading = stack.enter_context(posted(live, UNLOAD, {"model": "a"}))
        eventually(lambda: states(live) == {"a": "draining"}, "it waits")
        later = stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5}))
        eventually(lambda: live.model("a").waiting.total == 1, "a request comes meanwhile")
        assert not unloading.done()
        with hurried():
            assert ends_whole(lines, 1000)
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
