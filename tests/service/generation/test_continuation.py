"""Streams outlive the engine: every API's answer is that of a run in which no engine died."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from model.batch import StepBatch, StepOutput
from tests.fakes import FakeRunner
from tests.gathered import gathered
from tests.service.live import USER, Live, answer, begun, busy, hurried, idle, ready, remaining, running
from tests.waiting import PATIENCE, eventually

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
N = 40
"""Tokens of an answer: 0.8 seconds, unless the test hurries."""
STOP = answer("stops", N)[25:28]

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "scored": (COMPLETIONS, {"prompt": "scored", "n": 2, "logprobs": 2, "echo": True, "return_token_ids": True}),
    "prompts": (
        COMPLETIONS,
        {"prompt": ["one", "two"], "stream_options": {"include_usage": True}},
    ),
    "stops": (COMPLETIONS, {"prompt": "stops", "stop": [STOP], "logprobs": 0}),
    "ends": (COMPLETIONS, {"prompt": "ends", "temperature": 0, "include_stop_str_in_output": True}),
    "repeats": (
        COMPLETIONS,
        {"prompt": "r", "repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 1, "min_count": 2}},
    ),
    "fim": ("/v1/fim/completions", {"prompt": "def"}),
    "chat": (CHAT, {"messages": USER, "n": 3, "logprobs": True, "top_logprobs": 1}),
    "responses": (RESPONSES, {"input": "hi", "include": ["message.output_text.logprobs"]}),
    "messages": (MESSAGES, {"messages": USER, "stop_sequences": ["never"]}),
}


def limited(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"max_output_tokens" if path == RESPONSES else "max_tokens": N, **body}


class Reading:
    """All streams at once, each on a thread. `flowing` waits until each has given some events."""

    def __init__(self, live: Live, pool: ThreadPoolExecutor, n_events: int) -> None:
        self._live = live
        self._n_events = n_events
        self._flow = threading.Barrier(len(STREAMS) + 1)
        self._read = {name: pool.submit(self._events, *asked) for name, asked in STREAMS.items()}

    def flowing(self) -> None:
        self._flow.wait(PATIENCE)

    def result(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        return {name: gathered(future.result()) for name, future in self._read.items()}

    def _events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        asked = {**limited(path, body), "stream": True}
        with self._live.http.stream("POST", path, json=asked) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
            events = [json.loads(line) for _, line in zip(range(self._n_events), lines, strict=False)]
            self._flow.wait(PATIENCE)
            return [*events, *map(json.loads, lines)]


@pytest.mark.parametrize("n_events", [2, 12])
def test_streams_of_every_api_end_as_if_no_engine_had_died(n_events: int) -> None:
    with running(model="slow", max_sequences=16, max_step_tokens=64) as live, ThreadPoolExecutor(16) as pool:
        with hurried():
            alone = {name: gathered(live.events(path, limited(path, body))) for name, (path, body) in STREAMS.items()}
        before = live.metric("noria_generated_tokens_total")
        reading = Reading(live, pool, n_events)
        reading.flowing()
        live.hosts[-1].kill()
        eventually(lambda: len(live.hosts) == 2, "the next engine")
        with hurried():
            assert reading.result() == alone
        eventually(idle(live), "nothing is left")
        assert live.metric("noria_engine_restarts_total") == 1
        assert live.metric("noria_requests_continued_total") > len(STREAMS) / 2
        assert live.metric("noria_requests_total", outcome="error") == 0
        assert live.metric("noria_broken_streams_total") == 0
        assert live.metric("noria_generated_tokens_total") == 2 * before, "each token counts once"


def test_the_streams_above_end_in_different_ways() -> None:
    with running() as live:
        said = {name: gathered(live.events(path, limited(path, body))) for name, (path, body) in STREAMS.items()}
    reasons = {
        name: {item for path, item in found.items() if path[-1] == "finish_reason"} for name, found in said.items()
    }
    assert reasons["scored"] == reasons["prompts"] == {"length"}
    assert reasons["stops"] == reasons["ends"] == {"stop"}
    assert reasons["repeats"] == {"repetition"}


def test_the_seed_of_a_request_without_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake model takes no seed. The real one does (tests/e2e/test_engine_loss.py)."""
    seeds: list[set[int]] = []
    step = FakeRunner.step

    def noted(self: FakeRunner, batch: StepBatch) -> StepOutput:
        seeds[-1].update(item.params.seed for item in batch.slices)
        return step(self, batch)

    monkeypatch.setattr(FakeRunner, "step", noted)
    with running(model="slow") as live:
        seeds.append(set())
        with begun(live, max_tokens=100) as lines:
            seeds.append(set())
            live.hosts[-1].kill()
            with hurried():
                remaining(lines)
    assert len(seeds[0]) == 1
    assert seeds[0] == seeds[1]


def test_a_stream_goes_on_after_several_engines() -> None:
    with running(model="slow") as live, begun(live, max_tokens=400) as lines:
        for number in range(3):
            eventually(lambda number=number: len(live.hosts) > number and busy(live)(), "it runs")  # type: ignore[misc]
            live.hosts[number].kill()
        with hurried():
            *events, done = remaining(lines)
        assert done == "[DONE]"
        assert live.metric("noria_engine_restarts_total") == 3
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
        assert text == answer("long", 400)[400 - len(text) :], "the first event was read before"
        assert len(text) >= 390


def test_usage_and_timings_count_what_was_computed_for_the_client_once() -> None:
    """The prompt came from the cache in the first engine; that the second computes it again does not change that."""
    body = {"prompt": "p" * 64, "max_tokens": N, "stream": True, "stream_options": {"include_usage": True}}
    with running(model="slow", max_step_tokens=128) as live:
        with hurried():
            live.complete(prompt="p" * 64, max_tokens=1)
        with live.http.stream("POST", COMPLETIONS, json=body) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
            next(lines)
            live.hosts[-1].kill()
            with hurried():
                *_, last = map(json.loads, lines)
    usage, timings = last["usage"], last["timings"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (64, N)
    assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"] == 48
    assert (timings["prompt_n"], timings["predicted_n"]) == (16, N)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Live], None]]:
    """Lose the engine, and get no other."""

    def lose(live: Live) -> None:
        monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 60.0)
        live.hosts[-1].kill()
        eventually(lambda: live.engine.state == "restarting", "the engine is gone")

    return lose


def test_a_stream_that_waits_for_an_engine_ends_at_its_own_timeout(held: Callable[[Live], None]) -> None:
    with running(model="slow") as live, begun(live, timeout=2.0) as lines:
        held(live)
        *_, last, done = remaining(lines)
        assert done == "[DONE]"
        assert json.loads(last)["choices"][0]["finish_reason"] == "timeout"
        eventually(lambda: live.metric("noria_requests_total", outcome="timeout") == 1, "it is counted")


def test_a_stream_that_waits_for_an_engine_can_be_cancelled(held: Callable[[Live], None]) -> None:
    with running(model="slow") as live, begun(live) as lines:
        held(live)
        (item,) = live.state.requests
        facts = live.http.get(f"/v1/requests/{item.record.id}").json()
        assert facts["state"] == "waiting", "it has not finished"
        assert live.http.delete(f"/v1/requests/{item.record.id}").status_code == 200
        *_, last, _ = remaining(lines)
        assert json.loads(last)["choices"][0]["finish_reason"] == "abort"


def test_a_client_that_leaves_while_its_stream_waits_is_forgotten(held: Callable[[Live], None]) -> None:
    with running(model="slow") as live:
        with begun(live):
            held(live)
        eventually(lambda: live.metric("noria_requests_total", outcome="abort") == 1, "it counts as aborted")


def test_with_error_a_stream_that_has_begun_breaks_and_others_go_on() -> None:
    with running(model="slow", on_engine_loss="error", max_sequences=2) as live, ThreadPoolExecutor(2) as pool:
        with begun(live) as lines:
            plain = pool.submit(live.complete, prompt="plain", max_tokens=N)
            eventually(busy(live, 2), "both run")
            later = pool.submit(live.events, COMPLETIONS, {"prompt": "later", "max_tokens": N})
            eventually(lambda: live.metric("noria_requests_waiting") == 1, "the third waits")
            live.hosts[-1].kill()
            assert json.loads(remaining(lines)[-1])["error"]["code"] == "engine_died"
        with hurried():
            assert plain.result()["choices"][0]["text"] == answer("plain", N)
            assert "".join(event["choices"][0]["text"] for event in later.result()) == answer("later", N)
        assert ready(live.http)
