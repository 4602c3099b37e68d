"""What a request, and each streamed event, costs in the protocol class: uvicorn's and ours, in turns.

    python -m benchmarks.connection

The transport drops what is written, so no system call is measured.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.http.connection.places import Places
from service.http.connection.protocol import Connection

ROUNDS = 7
EVENTS = 50_000
REQUESTS = 5_000
EVENT = b"data: " + b"x" * 240 + b"\n\n"
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
)


class NoTransport:
    """A transport that drops what is written."""

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(EVENTS):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"17")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"status":"live"}', "more_body": False})


def uvicorns(config: uvicorn.Config, state: ServerState) -> Any:
    return HttpToolsProtocol(config=config, server_state=state, app_state={})


def ours(config: uvicorn.Config, state: ServerState) -> Any:
    return Connection(config, state, {}, places=Places(10, 10), on_refused=lambda reason: None)


async def seconds(make: Callable[[uvicorn.Config, ServerState], Any], app: ASGIApp, n: int) -> float:
    """The time of `n` requests on one connection."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
    config.load()
    state = ServerState()
    state.default_headers = [(b"date", b"Sun, 22 Nov 2026 00:00:00 GMT")]
    protocol = make(config, state)
    protocol.connection_made(NoTransport())
    begun = time.perf_counter()
    for _ in range(n):
        protocol.data_received(REQUEST)
        await asyncio.gather(*state.tasks)
    return time.perf_counter() - begun


async def main() -> None:
    found: dict[str, list[tuple[float, float]]] = {"uvicorn": [], "noria": []}
    for _ in range(ROUNDS):
        for name, make in (("uvicorn", uvicorns), ("noria", ours)):
            event = await seconds(make, stream, 1) / EVENTS
            found[name].append((event, await seconds(make, plain, REQUESTS) / REQUESTS))
    for name, rounds in found.items():
        events, requests = (sorted(column) for column in zip(*rounds, strict=True))
        middle = len(rounds) // 2
        print(
            f"{name:8} event {events[0] * 1e6:.2f} µs best, {events[middle] * 1e6:.2f} median; "
            f"request {requests[0] * 1e6:.1f} µs best, {requests[middle] * 1e6:.1f} median"
        )


if __name__ == "__main__":
    uvloop.run(main())
