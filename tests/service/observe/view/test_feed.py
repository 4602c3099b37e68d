"""The live events of the engine: what they show, what they hide, and that they cost what they should."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.engine.messages import Stats
from service.engine.picture import Picture
from service.observe.view import feed as feeds
from service.observe.view.feed import INTERVAL, Feed
from tests.service.live import Live, begun, running
from tests.waiting import PATIENCE, eventually

PATH = "/v1/engine/events"
Events = Iterator[dict[str, Any]]


@contextmanager
def listening(live: Live) -> Iterator[Events]:
    """The data of the feed's events, as they come."""

    def events(lines: Iterator[str]) -> Events:
        for line in lines:
            if line.startswith("event: "):
                assert line == "event: engine"
                yield json.loads(next(lines).removeprefix("data: "))

    with (
        httpx.Client(base_url=live.url, timeout=PATIENCE, headers=live.http.headers) as http,
        http.stream("GET", PATH) as response,
    ):
        assert response.status_code == 200, response.read()
        yield events(response.iter_lines())


def until(events: Events, condition: Any) -> dict[str, Any]:
    return next(event for event in events if condition(event))


def feed_of(live: Live) -> Feed:
    return live.state.models.first.feed


def test_a_request_is_shown_as_a_shape() -> None:
    """All pages that the pool counts as held are somebody's; the request's text and its key are nowhere."""
    with running(model="slow", api_keys=("secret-key",)) as live:
        assert live.http.get(PATH).status_code == 401
        live.http.headers["authorization"] = "Bearer secret-key"
        prompt = "a secret word " * 20
        with listening(live) as events, begun(live, prompt=prompt), begun(live, prompt=prompt):
            event = until(events, lambda event: event["running"] == 2 and event["tokens_per_second"])
            event = until(events, lambda event: event["steps"])
    first, second = event["sequences"]
    assert (first["state"], first["prompt"], first["reason"]) == ("decode", 280, None)
    assert first["generated"] > second["generated"]
    assert (first["cached"], second["cached"]) == (0, 272)
    pool = event["pools"][0]
    tables = [item["pages"][0] for item in (first, second)]
    assert pool["held"] == len({page for table in tables for page in table["ids"]})
    assert pool["held"] + pool["cached"] + pool["free"] == pool["pages"] == 512
    common = {*tables[0]["ids"]} & {*tables[1]["ids"]}
    assert pool["shared"] == len(common) > 0
    assert {tables[0]["ids"][index] for index in tables[0]["shared"]} == common
    assert all(step["decode"] == step["sequences"] == 2 for step in event["steps"])
    assert event["left_out"] == 0
    assert "secret" not in json.dumps(event)


def test_events_are_apart_whatever_the_rate_of_steps() -> None:
    with running(max_model_len=4096) as live, listening(live) as events, begun(live, max_tokens=4000):
        times = [next(events)["time"] for _ in range(8)]
    assert all(after - before > 0.9 * INTERVAL for before, after in pairwise(times))


def test_no_step_is_lost_between_events_of_a_slow_engine() -> None:
    with running(model="slow") as live, listening(live) as events, begun(live):
        until(events, lambda event: event["steps"])
        numbers = [step["n"] for _ in range(5) for step in next(events)["steps"]]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_why_a_sequence_waits_is_shown() -> None:
    with running(model="slow", max_sequences=1) as live, listening(live) as events, begun(live, n=2):
        event = until(events, lambda event: event["waiting"] and event["sequences"][1]["reason"])
    assert [item["state"] for item in event["sequences"]] == ["decode", "waiting"]
    assert event["sequences"][1]["reason"] == "sequences"


def test_the_feed_survives_the_engine() -> None:
    with running(model="slow") as live, listening(live) as events:
        assert next(events)["state"] == "ready"
        live.hosts[-1].kill()
        lost = until(events, lambda event: event["state"] != "ready" or not event["pools"])
        assert lost["state"] == "restarting"
        assert (lost["pools"], lost["sequences"], lost["running"]) == ([], [], 0)
        assert until(events, lambda event: event["state"] == "ready")["pools"]


def test_the_feed_ends_with_the_drain() -> None:
    with running(model="slow", drain_timeout=1) as live, listening(live) as events, begun(live):
        next(events)
        live.server.handle_exit(signal.SIGTERM, None)
        assert until(events, lambda event: event["state"] == "draining")["running"] == 1
        assert all(event["state"] == "draining" for event in events)  # and no more of them come


def test_the_number_of_listeners_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_LISTENERS", 1)
    with running() as live:
        with listening(live) as events:
            next(events)
            refusal = live.http.get(PATH)
            assert refusal.status_code == 429
            assert "1 clients read the engine's events, the limit is 1" in refusal.json()["error"]["message"]
            assert refusal.headers["retry-after"]
        eventually(lambda: feed_of(live)._watching is None, "nobody looks at the engine")
        with listening(live) as events:
            assert next(events)["state"] == "ready"


def test_who_reads_slowly_loses_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published while a listener is busy is nowhere; then it gets the next event."""
    monkeypatch.setattr(feeds, "INTERVAL", 0.01)

    async def listen() -> list[int]:
        client, looks = SimpleNamespace(n_lost=0, stats=Stats(), look=None), list[int]()

        async def look() -> Picture:
            looks.append(client.stats.preemptions)
            return Picture()

        async def published(number: int) -> None:
            client.stats = Stats(preemptions=number)
            while number not in looks:  # noqa: ASYNC110 - the feed looks soon
                await asyncio.sleep(0.001)

        client.look = look
        metrics = SimpleNamespace(latest_waits=(None, None), journal=SimpleNamespace(trouble=None))
        ended = asyncio.get_running_loop().create_future()
        feed = Feed(client, metrics, lambda: "ready", ended)  # type: ignore[arg-type]
        frames, seen = feed.frames(), []
        with feed.listening("a"):
            for numbers in ((0, 1), (2, 3, 4, 5)):
                for number in numbers[:-1]:
                    await published(number)
                reading = asyncio.ensure_future(anext(frames))
                await asyncio.sleep(0)
                await published(numbers[-1])
                seen.append(json.loads((await reading)[0].partition(b"data: ")[2])["preemptions"])
        return seen

    assert asyncio.run(listen()) == [1, 5]


def test_an_engine_that_is_lost_during_a_look_gives_no_negative_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listen() -> list[dict[str, Any]]:
        client = SimpleNamespace(n_lost=0, stats=Stats(generated_tokens=500), look=None)

        async def look() -> Picture:
            if client.stats.generated_tokens == 501:
                client.n_lost, client.stats = 1, Stats()
            return Picture()

        client.look = look
        metrics = SimpleNamespace(latest_waits=(None, None), journal=SimpleNamespace(trouble=None))
        feed = Feed(client, metrics, lambda: "ready", asyncio.get_running_loop().create_future())  # type: ignore[arg-type]
        found = []
        with feed.listening("a"):
            async for (frame,) in feed.frames():
                found.append(json.loads(frame.partition(b"data: ")[2]))
                client.stats = Stats(generated_tokens=501)
                if len(found) == 2:
                    return found
        return found

    ready, lost = asyncio.run(listen())
    assert (ready["state"], lost["state"], lost["tokens_per_second"]) == ("ready", "restarting", 0)


def test_a_fault_in_the_feed_ends_it_for_those_who_listen_and_not_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as live:
        with monkeypatch.context() as patch, httpx.Client(base_url=live.url, timeout=PATIENCE) as http:
            patch.setattr(feeds, "_rounded", None)
            assert '"error"' in http.get(PATH).text
        with listening(live) as events:
            assert next(events)["state"] == "ready"
