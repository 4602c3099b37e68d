"""Plain requests whose engine dies, streams without a frame, and the ends of the wait for another engine."""

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests import fakes
from tests.service.live import Live, answer, busy, hurried, idle, ready, running
from tests.waiting import eventually

COMPLETIONS = "/v1/completions"
LENGTH = 200
"""Tokens of an answer: four seconds, unless the test hurries."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def ask(pool: ThreadPoolExecutor, live: Live, **body: Any) -> "Future[httpx.Response]":
    return pool.submit(live.post, COMPLETIONS, {"max_tokens": LENGTH, **body})


def begun(live: Live, n: int) -> None:
    """Wait until so many sequences have tokens."""
    eventually(busy(live, n), "all run")
    before = live.metric("noria_generated_tokens_total")
    eventually(lambda: live.metric("noria_generated_tokens_total") > before + n, "all have tokens")


def written(events: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The text of a stream and why it ended. How many tokens an event has depends on the speed of its reader."""
    said = [part for event in events for part in (event.get("delta"), *(event.get("choices") or ())) if part]
    parts = [{"text": part} if isinstance(part, str) else {**part, **part.get("delta", {})} for part in said]
    reasons = [part.get("finish_reason") or part.get("stop_reason") for part in parts]
    return "".join(part.get("text") or part.get("content") or "" for part in parts), list(filter(None, reasons))


def held(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the next engine does not load, and the one that serves dies."""
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 60.0)
    live.hosts[-1].kill()
    eventually(lambda: live.engine.state == "restarting", "the engine is gone")


def test_plain_answers_are_those_given_alone_and_count_once(pool: ThreadPoolExecutor) -> None:
    prompts = [f"prompt {number}" for number in range(6)]
    with running(model="slow") as live:
        asked = [ask(pool, live, prompt=prompt, n=2, seed=7, temperature=1.0) for prompt in prompts]
        begun(live, 12)
        live.hosts[0].kill()
        with hurried():
            bodies = [future.result().json() for future in asked]
        for prompt, body in zip(prompts, bodies, strict=True):
            assert [item["text"] for item in body["choices"]] == [answer(prompt, LENGTH, choice) for choice in (0, 1)]
            assert body["usage"] == {**body["usage"], "prompt_tokens": len(prompt), "completion_tokens": 2 * LENGTH}
        eventually(idle(live), "nothing is left")
        assert live.metric("noria_engine_restarts_total") == 1
        assert live.metric("noria_requests_total", outcome="length") == len(prompts)
        assert live.metric("noria_generated_tokens_total") == 12 * LENGTH
        assert live.metric("noria_prompt_tokens_total") == sum(map(len, prompts))
        for name in ("queue", "time_to_first_token"):
            assert live.metric(f"noria_{name}_seconds_count") == 12


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_without_a_frame_begins_on_the_next_engine(pool: ThreadPoolExecutor, path: str) -> None:
    """The second prompt waits for a place in the step while the engine dies."""
    asked = {"input": "later"} if "responses" in path else {"messages": [{"role": "user", "content": "later"}]}
    asked = {"prompt": "later"} if path == COMPLETIONS else asked
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    with running(model="slow", max_sequences=1) as live:
        alone = written(live.events(path, {**asked, limit: 8}))
        first = ask(pool, live, prompt="first")
        eventually(busy(live), "the first one runs")
        second = pool.submit(live.events, path, {**asked, limit: 8})
        eventually(lambda: live.metric("noria_requests_waiting") == 1, "the second one waits")
        live.hosts[0].kill()
        with hurried():
            first.result()
        assert written(second.result()) == alone
        assert len(alone[0]) == 8
        assert first.result().json()["choices"][0]["text"] == answer("first", LENGTH)


def test_one_death_too_many_is_an_error(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.submitted.MAX_LOST", 1)
    with running(model="slow") as live:
        asked = ask(pool, live, prompt="a", max_tokens=3000)
        for number in range(2):
            eventually(lambda number=number: len(live.hosts) > number and ready(live.http), "an engine")  # type: ignore[misc]
            eventually(busy(live), "it runs")
            live.hosts[number].kill()
        response = asked.result()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_died"
        assert "retry-after" in response.headers
        assert live.metric("noria_requests_total", outcome="error") == 1


def test_without_a_next_engine_the_wait_ends_in_an_error(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.submitted.WAIT_SECONDS", 0.2)
    with running(model="slow") as live:
        asked = ask(pool, live, prompt="a", max_tokens=3000)
        eventually(busy(live), "it runs")
        held(live, monkeypatch)
        assert asked.result().json()["error"]["code"] == "engine_died"


def test_a_service_that_gives_up_ends_the_wait(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request's own time would be up soon, but that is not why it ends."""
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 0.0)
    with running(model="slow") as live:
        asked = ask(pool, live, prompt="a", max_tokens=3000, timeout=25.0)
        eventually(busy(live), "it runs")
        monkeypatch.setattr(fakes, "create_fake", fakes.create_broken)
        live.hosts[0].kill()
        assert asked.result().json()["error"]["code"] == "engine_died"


def test_the_requests_own_timeout_ends_the_wait(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(model="slow") as live:
        asked = ask(pool, live, prompt="a", max_tokens=3000, timeout=1.0, echo=True)
        eventually(busy(live), "it runs")
        held(live, monkeypatch)
        (choice,) = asked.result().json()["choices"]
        assert choice["finish_reason"] == "timeout"
        assert choice["text"] == "a" + answer("a", len(choice["text"]) - 1)
        assert live.metric("noria_requests_total", outcome="timeout") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_request_waits_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def leave(live: Live) -> None:
        async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
            request = asyncio.create_task(
                http.post(COMPLETIONS, json={"prompt": "a" * 400, "max_tokens": 3000, "stream": stream})
            )
            await asyncio.to_thread(eventually, busy(live), "it runs")
            await asyncio.to_thread(held, live, monkeypatch)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    # A step takes 20 ms and 4 tokens: the stream has no frame for two seconds.
    with running(model="slow", max_step_tokens=4, max_sequences=4) as live:
        asyncio.run(leave(live))
        eventually(lambda: live.metric("noria_requests_total", outcome="abort") == 1, "it counts as aborted")


def test_the_end_of_a_drain_ends_the_wait(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(model="slow", drain_timeout=0.2) as live:
        asked = ask(pool, live, prompt="a", max_tokens=3000)
        eventually(busy(live), "it runs")
        held(live, monkeypatch)
        live.server.handle_exit(signal.SIGTERM, None)
        assert asked.result().json()["error"]["code"] == "shutting_down"
