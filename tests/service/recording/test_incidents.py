"""Incidents that operators of servers have told of, rebuilt on a real server with the fake model."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from service.recording.explain import explain
from tests.service.hosting.serving import LATE, said, serving
from tests.service.live import LONG, Live, begun, busy, hurried, sent
from tests.service.recording.sampling import later, sampled
from tests.waiting import PATIENCE, eventually


def cause(live: Live) -> str:
    return explain(later(live)).rule.name


def test_the_cache_thrashes() -> None:
    """All requests are admitted, and none has space to grow: each takes the pages of the others."""
    with sampled(model="slow") as live, ThreadPoolExecutor(64) as pool:
        later(live, 1)
        bodies = ({**LONG, "prompt": f"{k:02d} " * 99, "max_tokens": 200} for k in range(64))
        sends = [pool.submit(live.http.post, "/v1/completions", json=body) for body in bodies]
        eventually(busy(live, 64), "they came")
        with hurried():
            assert {send.result().status_code for send in sends} == {200}
        assert live.metric("noria_preemptions_total") >= 3
        assert cause(live) == "too-many-preemptions"


def test_a_cold_start_takes_long() -> None:
    with sampled(model="large", wait="loading") as live:
        assert cause(live) == "it-loads"
        assert live.http.get("/health").json()["trouble"].startswith("fake is still loading (loading weights, 50%)")
        with hurried():
            eventually(lambda: live.http.get("/ready").status_code == 200, "it is loaded")


def test_long_prompts_are_before_all_others() -> None:
    with sampled(model="slow", max_step_tokens=16, max_sequences=16) as live:
        with begun(live, prompt="x" * 1000), sent(live.address, prompt="y" * 900), sent(live.address, prompt="z" * 900):
            eventually(busy(live, 3), "they came")
            found = cause(live)
        assert found == "prompts-fill-the-steps"
        with hurried():
            eventually(lambda: live.metric("noria_requests_running") == 0, "they are gone")


def test_a_new_client_sends_a_new_field() -> None:
    with sampled() as live:
        later(live, 1)
        for _ in range(20):
            assert live.post("/v1/completions", {"prompt": "a", "mood": "new"}).status_code == 400
        assert cause(live) == "clients-send-what-is-refused"


def test_clients_try_again_and_again() -> None:
    with sampled(model="slow", max_sequences=1, max_queue=1) as live, begun(live), sent(live.address):
        eventually(busy(live, 2), "it is full")
        assert {live.post("/v1/completions", {"prompt": "a"}).status_code for _ in range(5)} == {429}
        assert cause(live) == "the-queue-is-full"


def test_models_push_each_other_out(tmp_path: Path) -> None:
    with sampled(server=lambda: serving(tmp_path, {"a": LATE, "b": LATE}, {"a": 2, "b": 2}, memory_budget=3)) as live:
        for _ in range(3):
            assert said(live, "a") == said(live, "b")
        assert cause(live) == "models-take-turns"


def test_a_model_has_no_files(tmp_path: Path) -> None:
    with sampled(server=lambda: serving(tmp_path, {"a": {}, "b": {**LATE, "source": "broken"}})) as live:
        assert live.post("/v1/completions", {"model": "b", "prompt": "a"}).status_code == 503
        assert cause(live) == "the-model-cannot-be-loaded"


def test_it_drains() -> None:
    with sampled(model="slow", drain_timeout=PATIENCE) as live, begun(live):
        live.server.handle_exit(15, None)
        eventually(lambda: live.http.get("/ready").status_code == 503, "it drains")
        assert explain(later(live)).rule.name == "it-drains"
        with hurried():
            pass
