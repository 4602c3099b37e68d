"""Keys, sizes, the queue, clients that leave, the drain, and an engine that dies."""

import contextlib
import json
import signal
import threading
from typing import Any

import httpx
import pytest

from model.options import RunnerOptions
from tests.service.live import LONG, USER, Live, answer, begun, busy, hurried, idle, ready, remaining, running, sent
from tests.waiting import PATIENCE, eventually

COMPLETIONS = "/v1/completions"


class Parallel:
    """A request on a thread of its own."""

    def __init__(self, live: Live, **body: Any) -> None:
        self.response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, args=[live.url, {**LONG, **body}])
        self._thread.start()

    def _run(self, url: str, body: dict[str, Any]) -> None:
        self.response = httpx.post(url + COMPLETIONS, json=body, timeout=PATIENCE)

    def result(self) -> httpx.Response:
        self._thread.join()
        assert self.response is not None
        return self.response


def test_every_route_but_the_probes_wants_a_key() -> None:
    with running(api_keys=("first", "sécond")) as live:
        for method, path in [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/x"), ("POST", COMPLETIONS)]:
            for header in [None, "Bearer wrong", "Basic first", "first", "Bearer", "Bearer first x"]:
                response = live.http.request(method, path, headers={"authorization": header} if header else {})
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/live", "/ready", "/health"):
            assert live.http.get(path).status_code == 200
        for key in (b"Bearer first", "bearer sécond".encode()):
            assert live.http.get("/v1/models", headers={b"authorization": key}).status_code == 200


def test_a_body_over_the_limit() -> None:
    with running(max_body_bytes=100_000) as live:
        contents: list[Any] = [iter([b"x" * 10_000] * 200), b"x" * 2_000_000]  # in chunks, and with a length
        for content in contents:
            response = live.http.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
            assert response.status_code == 413
            assert "100000" in response.json()["error"]["message"]
        fits = json.dumps({"prompt": "hi", "max_tokens": 1}).encode().ljust(100_000)
        response = live.http.post(COMPLETIONS, content=fits, headers={"content-type": "application/json"})
        assert response.status_code == 200


def test_a_full_queue_refuses_at_once_and_serves_again_later() -> None:
    with running(model="slow", max_sequences=1, max_queue=1) as live:
        with begun(live), contextlib.ExitStack() as stack:
            waiting = Parallel(live, max_tokens=1)
            stack.callback(waiting.result)
            eventually(busy(live, 2), "two requests in the engine")
            response = live.post(COMPLETIONS, {"prompt": "third"})
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
            assert "2" in response.json()["error"]["message"]
            stack.pop_all()
        assert waiting.result().json()["choices"][0]["text"] == answer("long", 1)
        assert live.complete(prompt="third", max_tokens=2)["choices"][0]["text"] == answer("third", 2)


def test_a_client_that_leaves_frees_the_engine() -> None:
    with running(model="slow") as live:
        for number, client in enumerate((begun(live), begun(live, n=3), sent(live.address)), start=1):
            with client:
                eventually(busy(live), "the request runs")
            eventually(idle(live), "the engine forgets the request")
            eventually(lambda n=number: live.metric("noria_requests_total", outcome="abort") == n, "it is aborted")
        assert live.metric("noria_generated_tokens_total") < LONG["max_tokens"]


def test_a_client_that_leaves_before_the_first_token_frees_the_engine() -> None:
    """The request waits behind another one, so nothing was sent back when its client goes."""
    with running(model="slow", max_sequences=1) as live, begun(live):
        for stream in (False, True):
            with sent(live.address, stream=stream):
                eventually(lambda: live.metric("noria_requests_waiting") == 1, "the request waits")
            eventually(lambda: live.metric("noria_requests_waiting") == 0, "the engine forgets it")
            assert live.metric("noria_requests_running") == 1


def test_a_dead_engine_ends_streams_with_an_error_event_and_a_fresh_one_answers_the_others() -> None:
    with running(model="slow", on_engine_loss="error") as live:
        with begun(live) as one, begun(live, n=2) as two:
            plain = Parallel(live, max_tokens=50)
            eventually(busy(live, 4), "all requests run")
            live.hosts[0].kill()
            for lines in (one, two):
                last = remaining(lines)[-1]
                assert json.loads(last)["error"]["code"] == "engine_died"
            response = plain.result()
            assert response.status_code == 200
            assert response.json()["choices"][0]["text"] == answer("long", 50)
        eventually(lambda: ready(live.http), "a fresh engine")
        assert live.complete(prompt="again", max_tokens=3)["choices"][0]["text"] == answer("again", 3)
        assert live.metric("noria_engine_restarts_total") == 1
        assert live.metric("noria_requests_total", outcome="error") == 2
        assert len(live.hosts) == 2


def test_a_broken_stream_ends_in_the_error_event_of_its_dialect() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": "a", "max_output_tokens": 300},
        "/v1/messages": {"messages": USER, "max_tokens": 300},
    }
    with running(model="slow", on_engine_loss="error") as live, contextlib.ExitStack() as stack:
        asked = [live.http.stream("POST", path, json={**body, "stream": True}) for path, body in bodies.items()]
        streams = [stack.enter_context(stream).iter_lines() for stream in asked]
        firsts = [next(lines) for lines in streams]
        live.hosts[0].kill()
        responses, messages = ([first, *filter(None, lines)] for first, lines in zip(firsts, streams, strict=True))
    assert responses[-2] == messages[-2] == "event: error"
    error = json.loads(responses[-1].removeprefix("data: "))
    assert (error["type"], error["code"]) == ("error", "engine_died")
    assert error["sequence_number"] == len(responses) // 2 - 1
    assert '"overloaded_error"' in messages[-1]


def test_a_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    with running(model="slow") as live, begun(live, max_tokens=400) as lines:
        live.server.handle_exit(signal.SIGTERM, None)
        eventually(lambda: not ready(live.http), "readiness flips")
        assert live.http.get("/ready").json() == {"status": "draining"}
        assert live.http.get("/health").status_code == 200
        response = live.post(COMPLETIONS, {"prompt": "late"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in response.headers
        with hurried():
            events = remaining(lines)
        assert events[-1] == "[DONE]"
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
        assert answer("long", 400).endswith(text)
        eventually(lambda: live.server.should_exit, "the server ends by itself")


def test_a_drain_that_lasts_too_long_ends_with_an_error_event() -> None:
    with running(model="slow", drain_timeout=0.2) as live, begun(live) as lines:
        plain = Parallel(live)
        eventually(busy(live, 2), "both run")
        live.server.handle_exit(signal.SIGTERM, None)
        assert json.loads(remaining(lines)[-1])["error"]["code"] == "shutting_down"
        assert plain.result().status_code == 503
        eventually(lambda: live.server.should_exit, "the server ends by itself")


def test_an_idle_server_drains_at_once() -> None:
    with running() as live:
        live.server.handle_exit(signal.SIGINT, None)
        eventually(lambda: live.server.should_exit, "the server ends")


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with running(model="broken", wait="stopped") as live:  # "failed" lasts for a moment only
        assert live.server.failed
        assert live.server.should_exit
    assert capsys.readouterr().err == "noria: found nothing at 'broken', expected a model\n"


@pytest.mark.parametrize(
    ("device", "options", "limits"),
    [
        ("cpu", {}, (64, 512)),
        ("cpu", {"max_step_tokens": 8}, (8, 8)),
        ("cpu", {"max_sequences": 100}, (100, 512)),
        ("cpu", {"max_sequences": 1000}, (1000, 1000)),
        ("cuda", {}, (256, 2048)),
        ("cuda", {"max_step_tokens": 100}, (100, 100)),
        ("cuda", {"max_sequences": 4, "max_step_tokens": 5}, (4, 5)),
    ],
    ids=str,
)
def test_a_step_has_a_token_for_each_sequence(device: str, options: dict[str, int], limits: tuple[int, int]) -> None:
    assert RunnerOptions("", **options).step_limits(device) == limits  # type: ignore[arg-type]
