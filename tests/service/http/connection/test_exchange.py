"""The body of a response that leaves in pieces, because the client reads slowly."""

import asyncio
import contextlib
from typing import Any

from service.http.connection.exchange import PIECE_BYTES, Exchange
from service.http.connection.reader import RequestHead

EVENT = b"e" * (3 * PIECE_BYTES)


class SlowClient:
    """An outbox whose buffer is full after each write, until the client reads."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False
        self.drained: asyncio.Future[None] | None = None

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.drained = asyncio.get_running_loop().create_future()

    def read(self) -> None:
        if self.drained is not None:
            self.drained.set_result(None)
            self.drained = None

    def abort(self) -> None:
        self.aborted = True


async def begun(outbox: Any) -> tuple[Exchange, asyncio.Task[None]]:
    """A response of which the first piece of an event was written, and the task that sends the event."""
    head = RequestHead(b"GET", b"/", "1.1", (), True, 0)
    scope = {"method": "GET", "http_version": "1.1"}
    exchange = Exchange(outbox, scope, [], head, want_body=lambda: None, finished=lambda exchange: None)
    exchange.end()
    await exchange.send({"type": "http.response.start", "status": 200, "headers": []})
    sending = asyncio.create_task(exchange.send({"type": "http.response.body", "body": EVENT, "more_body": True}))
    await asyncio.sleep(0)
    return exchange, sending


def test_an_event_that_is_cut_off_ends_the_connection() -> None:
    async def run() -> None:
        client = SlowClient()
        _, sending = await begun(client)
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        assert client.aborted

    asyncio.run(run())


def test_a_whole_event_leaves_the_connection_open() -> None:
    async def run() -> None:
        client = SlowClient()
        _, sending = await begun(client)
        while not sending.done():
            client.read()
            await asyncio.sleep(0)
        assert not client.aborted

    asyncio.run(run())
