"""Models that cannot be loaded, or whose engines die: their requests know why, and others do not notice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from model.errors import ModelError
from service.engine.client import EngineClient
from service.errors.errors import Unavailable
from service.hosting.drain import Drain
from service.hosting.entries import ModelEntry
from service.hosting.hosted import HostedModel
from service.observe.metrics import Metrics
from service.settings import Settings
from tests import fakes
from tests.service.hosting.serving import LATE, count, said, serving, states, toml
from tests.service.live import answer, refused, running
from tests.waiting import eventually

COMPLETIONS = "/v1/completions"


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
            assert 3000 < int(response.headers["retry-after"]) <= 3600, (
                "the pause, also for the one that fails the load"
            )
            assert live.http.get(f"/v1/models/{name}").json()["reason"] in error["message"]
            assert "\n" not in error["message"]
        assert [count(live, "loads", model=name, outcome="error") for name in entries] == [0, 1, 1], "it waits a while"
        assert live.metric("noria_model_memory_bytes") == 1
        assert said(live, "a") == answer("hi", 5)
        monkeypatch.setattr("service.hosting.hosted.BACKOFF_SECONDS", (0.0, 0.0))  # the pause is over
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
        live.post("/v1/models/load", {"model": "b", "keep_alive": "1h"})
        monkeypatch.setattr(fakes, "create_fake", works)
        assert said(live, "b") == answer("hi", 5)
        assert live.model("b").idle_seconds is None, "the wish of a load that failed is over"
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
                model.check_loadable()
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
        monkeypatch.setattr("service.hosting.hosted.BACKOFF_SECONDS", (0.0, 0.0))  # the pause is over
        assert said(live, "a") == answer("hi", 5)
