"""The way of tokens to a client: the event loop, the parser, and the events for a slow client."""

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as TheirHistogram

from service.http.connection.protocol import Connection
from service.http.sse import EventWriter, PlainEvents
from service.observe.histogram import Histogram
from tests.service.live import Live, answer
from tests.waiting import eventually


def test_uvicorn_has_what_our_protocol_uses(live: Live) -> None:
    """Of the version that is installed: the application, and the sets that it empties before it stops."""
    config, state = live.server.config, live.server.server_state
    live.http.get("/live")
    assert {type(connection) for connection in state.connections} == {Connection}
    eventually(lambda: state.tasks == set(), "the task of the request is gone")
    assert [name for name, _ in state.default_headers] == [b"date"]
    assert config.loaded_app is config.app
    assert (config.asgi_version, config.root_path) == ("3.0", "")


def test_uvloop_and_httptools_serve(live: Live) -> None:
    assert type(live.server._loop).__module__.startswith("uvloop")
    assert live.server.config.http_protocol_class.func is Connection


def test_no_comment_comes_between_the_pieces_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow client takes the event so slowly that the time for a comment passes several times."""
    seconds = 0.01
    monkeypatch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", seconds)
    written: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        body = message.get("body", b"")
        for piece in (body[:5], body[5:]):
            written.append(piece)
            if body.startswith(b"data: large"):
                await asyncio.sleep(10 * seconds)

    async def main() -> None:
        writer = EventWriter(send, send, PlainEvents(), "text/event-stream")  # type: ignore[arg-type]
        await asyncio.sleep(5 * seconds)  # silence, with comments
        await writer.write([b"data: large\n\n"])
        await writer.end()

    asyncio.run(main())
    assert b": kee" in written
    assert written[written.index(b"data:") + 1] == b" large\n\n"


def test_a_client_that_lags_gets_its_tokens_in_one_frame(live: Live) -> None:
    """The client takes the first frame and nothing more until the engine has finished."""
    body = {"prompt": "lag", "max_tokens": 50, "stream": True}
    bodies: list[bytes] = []

    async def main() -> None:
        messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

        async def receive() -> dict[str, Any]:
            return next(messages, None) or await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            if body := message.get("body"):
                bodies.append(body)
            while len(bodies) == 1 and (live.engine.stats.running or not live.engine.stats.queried_tokens):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        await live.server.config.app(scope, receive, send)

    assert live.server._loop is not None
    asyncio.run_coroutine_threadsafe(main(), live.server._loop).result(20)
    *frames, done = bodies
    assert done == b"data: [DONE]\n\n"
    events = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    assert "".join(event["choices"][0]["text"] for event in events) == answer("lag", 50)
    assert len(events) <= 3  # the first token, perhaps what came in the same moment, and all the others
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_the_histogram_shows_what_the_librarys_own_does() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram(ours, "x_seconds", "Text.", (0.1, 0.5, 2.0))
    their_histogram = TheirHistogram("x_seconds", "Text.", ["model"], buckets=(0.1, 0.5, 2.0), registry=theirs)
    for model, value, times in (("a", 0.05, 1), ("a", 0.1, 2), ("b", 0.3, 1), ("a", 2.0, 1), ("b", 9.0, 3)):
        histogram.of(model).observe(value, times)
        for _ in range(times):
            their_histogram.labels(model).observe(value)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == expected
