"""Models that are idle for long are unloaded."""

from pathlib import Path
from typing import Any

import pytest

from tests.service.hosting.serving import LATE, count, ends_whole, said, serving, states
from tests.service.live import answer, begun, hurried, refused
from tests.waiting import eventually

LOAD = "/v1/models/load"


def test_an_idle_model_is_unloaded_and_a_busy_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.models.WATCH_SECONDS", 0.01)
    with serving(tmp_path, {"a": {"source": "slow", "idle_unload": 0, **LATE}, "b": {}}) as live:
        with begun(live, model="a", max_tokens=1000) as lines:
            assert [said(live, "a") for _ in range(3)] == [answer("hi", 5)] * 3
            assert (states(live)["a"], count(live, "loads", model="a", outcome="ok")) == ("ready", 1)
            with hurried():
                assert ends_whole(lines, 1000)
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
        assert said(live, "b") == answer("hi", 5)
        assert live.model("b").idle_seconds == 3600, "it has held until the model was unloaded"
        assert states(live) == {"a": "ready", "b": "ready", "c": "ready"}, "-1 is for ever"


@pytest.mark.parametrize("value", ["soon", "", [], {}, True, 1e300, 10**400])
def test_a_wrong_keep_alive_is_named(tmp_path: Path, value: Any) -> None:
    with serving(tmp_path, {"a": {}}) as live:
        error = refused(live, LOAD, {"model": "a", "keep_alive": value})
        assert error["param"] == "keep_alive"
