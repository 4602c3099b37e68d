"""Server-sent events: frames, and a response that notices a client going away."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import Unavailable, as_api_error

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def frame(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


async def while_connected(receive: Receive, expired: asyncio.Future[None], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client goes away or the server's time is up.

    `expired` is done when a drain has lasted long enough. Raises ClientGone or Unavailable then.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone, expired), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise Unavailable("the server is shutting down", "shutting_down")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of the frames in `events`, inside `guard`, which is left when the stream ends however it ends.

    The status goes out with the first frame, so a request that fails before its first token gets a plain error;
    one that fails later gets an error event and no [DONE].
    """

    def __init__(
        self, events: AsyncIterator[bytes], guard: AbstractContextManager[object], expired: asyncio.Future[None]
    ) -> None:
        super().__init__()
        self._events = events
        self._guard = guard
        self._expired = expired
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._guard:
                await while_connected(receive, self._expired, self._send_all(send, scope["noria.send"]))
        except ClientGone:
            raise
        except Exception as error:
            failure = as_api_error(error)
            if self._started:
                await self._send(send, frame(failure.body()), more=False)
            else:
                await failure.response()(scope, receive, send)

    async def _send_all(self, send: Send, send_directly: Send) -> None:
        """The start goes through every middleware, the frames, which none of them looks at, past all but the server."""
        async for body in self._events:
            await self._send(send_directly if self._started else send, body)
        await self._send(send_directly if self._started else send, DONE, more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": body, "more_body": more})
