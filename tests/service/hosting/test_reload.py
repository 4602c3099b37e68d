"""SIGHUP: the file of --models is read again."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.hosting.serving import LATE, count, ends_whole, facts, posted, said, serving, states, toml, waits
from tests.service.live import answer, begun, hurried, idle, refused
from tests.waiting import PATIENCE, eventually

COMPLETIONS = "/v1/completions"


def test_sighup_adds_removes_changes_and_keeps_models(tmp_path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {
        "kept": {"source": "slow"},
        "changed": {"max_model_len": 40},
        "removed": {"source": "slow"},
    }
    with serving(tmp_path, entries) as live, ExitStack() as stack:
        kept, removed = live.model("kept"), live.model("removed")
        streams = [stack.enter_context(begun(live, model=name, max_tokens=1000)) for name in ("kept", "removed")]
        live.http.headers["x-request-id"] = "known"
        stack.enter_context(begun(live, model="removed"))
        del live.http.headers["x-request-id"]
        entries |= {"changed": {"max_model_len": 80}, "added": {}, "late": {**LATE}}
        del entries["removed"]
        live.reload(toml(entries))
        ready = {"kept": "ready", "changed": "ready", "added": "ready", "late": "unloaded"}
        eventually(lambda: states(live) == ready, "they are loaded")
        assert live.model("kept") is kept
        assert facts(live, "known")["state"] in ("prompt", "decode"), "a client still sees its request"
        live.http.delete("/v1/requests/known")
        assert count(live, "loads", model="kept", outcome="ok") == 1
        assert live.http.get("/v1/models/changed").json()["max_model_len"] == 80
        assert [said(live, name) for name in ("changed", "added", "late")] == [answer("hi", 5)] * 3
        assert refused(live, COMPLETIONS, {"model": "removed", "prompt": "hi"}, 404)["code"] == "model_not_found"
        with hurried():
            assert [ends_whole(lines, 1000) for lines in streams] == [True, True]
        gone = live.state.models.retiring
        eventually(lambda: removed.client.state == "unloaded" and not gone, "the one that is gone is closed")
        eventually(idle(live), "nothing runs")


def test_what_needs_no_other_engine_changes_while_the_model_serves(tmp_path: Path) -> None:
    """And a model that is loaded at the start from now on is loaded."""
    with serving(tmp_path, {"a": {"source": "slow", "aliases": ["old"]}, "b": LATE}, memory_budget=2) as live:
        before = [live.model(name) for name in "ab"]
        with begun(live, model="old", max_tokens=1000) as lines:
            changed = {"source": "slow", "aliases": ["new"], "pin": True, "ttl": 3600, "load": "first-request"}
            live.reload(toml({"a": changed, "b": {}}))
            with hurried():
                assert ends_whole(lines, 1000)
        eventually(lambda: states(live) == {"a": "ready", "new": "ready", "b": "ready"}, "the other one is loaded")
        assert [live.model(name) for name in "ab"] == before
        assert (live.model("a").is_due, live.model("a").idle_seconds) == (False, 3600)
        assert live.http.get("/v1/models/new").json()["pinned"] is True
        assert live.complete(model="new", prompt="hi", max_tokens=5)["model"] == "new"
        assert refused(live, COMPLETIONS, {"model": "old", "prompt": "hi"}, 404)["code"] == "model_not_found"
        assert count(live, "loads", model="a", outcome="ok") == 1


def test_a_pinned_model_that_changes_is_loaded_once_the_old_one_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another model, for which there is memory already, does not wait for that."""
    entries: dict[str, dict[str, Any]] = {"a": {"source": "slow", "pin": True}}
    with serving(tmp_path, entries, {"a": 2}, memory_budget=3) as live, begun(live, max_tokens=1000) as lines:
        live.reload(toml({"a": {**entries["a"], "max_model_len": 99}, "b": {}}))
        eventually(lambda: states(live) == {"a": "unloaded", "b": "ready"}, "the other one is loaded")
        assert live.metric("noria_model_memory_bytes", model="a") == 2, "the old one has them"
        with hurried():
            assert ends_whole(lines, 1000)
        eventually(lambda: states(live) == {"a": "ready", "b": "ready"}, "both are loaded")
        assert live.http.get("/v1/models/a").json()["max_model_len"] == 99
        assert live.metric("noria_model_memory_bytes", model="a") == 2
        assert "does not fit" not in caplog.text


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
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        live.reload(toml({"a": {"source": "slow", "max_model_len": 99}}))
        waiting = stack.enter_context(
            posted(live, COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5}, **{"x-request-id": "new"})
        )
        eventually(lambda: waits(live, "new", "memory"), "it waits for memory")
        with hurried():
            assert ends_whole(lines, 1000)
            assert waiting.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert live.http.get("/v1/models/a").json()["max_model_len"] == 99


def test_a_request_that_waits_for_a_model_that_is_removed_gets_a_404_at_once(tmp_path: Path) -> None:
    entries = {"a": {"source": "large", **LATE}, "b": {}}
    with serving(tmp_path, entries) as live, ExitStack() as stack:
        waiting = stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5}))
        removed = live.model("a")
        eventually(lambda: removed.client.stage == "loading weights", "it loads")
        live.reload(toml({"b": {}}))
        reply = waiting.result(PATIENCE)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        with hurried():  # the thread of the fake engine
            eventually(lambda: removed.client.state == "unloaded" and not live.state.models.retiring, "it is closed")
        assert [count(live, "loads", model="a", outcome=outcome) for outcome in ("ok", "error")] == [0, 0]
        assert states(live) == {"b": "ready"}


def test_a_request_that_waits_for_a_model_that_drains_and_is_removed_gets_a_404_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"source": "slow"}, "b": {}}) as live, ExitStack() as stack:
        removed = live.model("a")
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        unload = stack.enter_context(posted(live, "/v1/models/unload", {"model": "a"}))
        eventually(lambda: removed.state == "draining", "it drains")
        waiting = stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "hi", "max_tokens": 5}))
        eventually(lambda: removed.waiting.total == 1, "a request waits")
        live.reload(toml({"b": {}}))
        assert waiting.result(PATIENCE).status_code == 404
        with hurried():
            assert ends_whole(lines, 1000)
            assert unload.result(PATIENCE).status_code == 200
        eventually(lambda: not live.state.models.retiring, "it is closed")
        assert (removed.state, count(live, "loads", model="a", outcome="ok")) == ("unloaded", 1)


def test_a_model_that_is_removed_while_it_waits_for_memory_takes_none(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {"source": "slow"}, "b": LATE}, memory_budget=1) as live, ExitStack() as stack:
        removed = live.model("b")
        lines = stack.enter_context(begun(live, model="a", max_tokens=1000))
        waiting = stack.enter_context(posted(live, COMPLETIONS, {"model": "b", "prompt": "hi", "max_tokens": 5}))
        eventually(lambda: removed.waits_for_memory, "it waits for memory")
        live.reload(toml({"a": {"source": "slow"}}))
        assert waiting.result(PATIENCE).status_code == 404
        eventually(lambda: not live.state.models.retiring, "it is closed")
        with hurried():
            assert ends_whole(lines, 1000)
        assert states(live) == {"a": "ready"}


def test_requests_that_wait_for_a_model_that_changes_go_over_to_the_new_one(tmp_path: Path) -> None:
    """A stream and a plain request, while the old one loads; it ends before it has loaded."""
    body = {"model": "a", "prompt": "hi", "max_tokens": 5}
    with serving(tmp_path, {"a": {"source": "large", **LATE}}) as live, ExitStack() as stack:
        old = live.model("a")
        plain, stream = (stack.enter_context(posted(live, COMPLETIONS, {**body, "stream": on})) for on in (False, True))
        eventually(lambda: old.waiting.total == 2 and old.client.stage == "loading weights", "both wait for its load")
        live.reload(toml({"a": {"max_model_len": 99, **LATE}}))
        assert plain.result(PATIENCE).json()["choices"][0]["text"] == answer("hi", 5)
        assert stream.result(PATIENCE).text.endswith("data: [DONE]\n\n")
        assert live.http.get("/v1/models/a").json()["max_model_len"] == 99
        assert [count(live, "loads", model="a", outcome=outcome) for outcome in ("ok", "error")] == [1, 0]
        with hurried():
            eventually(lambda: not live.state.models.retiring, "the old one is closed")


def test_tokenizers_and_adapters_are_those_of_the_model_that_replaced_the_one_that_loaded(tmp_path: Path) -> None:
    for folder in ("old", "new/sql"):
        (tmp_path / folder).mkdir(parents=True)
    old = {"source": "large", "lora_dir": str(tmp_path / "old"), **LATE}
    with serving(tmp_path, {"a": old}) as live, ExitStack() as stack:
        described = stack.enter_context(posted(live, "/tokenizer_info", None))
        loaded = stack.enter_context(posted(live, "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "sql"}))
        eventually(lambda: live.model("a").waiting.total == 2, "both wait")
        live.reload(toml({"a": {"max_model_len": 99, "lora_dir": str(tmp_path / "new"), **LATE}}))
        assert described.result(PATIENCE).json()["model_max_length"] == 99
        assert loaded.result(PATIENCE).json()["parent"] == "a"
        assert said(live, "sql", n=9) == answer("hi", 9, adapter=str(tmp_path / "new" / "sql"))
        with hurried():
            eventually(lambda: not live.state.models.retiring, "the old one is closed")


def test_the_gauges_of_a_removed_model_end_and_its_counters_stay(tmp_path: Path) -> None:
    with serving(tmp_path, {"a": {}, "b": {}}) as live:

        def families() -> dict[str, set[str]]:
            """The types of the metrics that have samples of each model."""
            kinds: dict[str, set[str]] = {"a": set(), "b": set()}
            for family in text_string_to_metric_families(live.http.get("/metrics").text):
                if family.name.endswith("_created"):  # the time at which a counter began
                    continue
                for name in {sample.labels.get("model") for sample in family.samples} & kinds.keys():
                    kinds[name].add(family.type)
            return kinds

        every = {"gauge", "counter", "histogram"}
        said(live, "b")
        assert families() == {"a": every, "b": every}
        live.reload(toml({"a": {}}))
        eventually(lambda: not live.state.models.retiring, "it is closed")
        assert families() == {"a": every, "b": every - {"gauge"}}
        live.reload(toml({"a": {}, "b": {}}))
        eventually(lambda: states(live)["b"] == "ready", "it is there again")
        assert families() == {"a": every, "b": every}
        assert count(live, "loads", model="b", outcome="ok") == 2


def test_models_that_are_added_are_loaded_one_after_the_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that does not fit beside those before it is loaded when it is used, as at the start."""
    with serving(tmp_path, {"a": {}}, {"b": 2, "c": 2}, memory_budget=3) as live:
        live.reload(toml({"a": {}, "b": {}, "c": {}}))
        eventually(lambda: "does not fit beside the others" in caplog.text, "the last one is not loaded")
        assert states(live) == {"a": "ready", "b": "ready", "c": "unloaded"}
        assert count(live, "unloads", model="b", reason="memory") == 0
