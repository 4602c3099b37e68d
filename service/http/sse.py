"""Server-sent events: frames, and a response that notices a client going away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.dialects import OPENAI, error_response
from service.http.errors import ApiError, Unavailable, as_api_error

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_SECONDS = 15.0
"""Silence after which a stream says that it lives: proxies close connections that are silent for long."""

T = TypeVar("T")
Json = dict[str, Any]


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Framing(Protocol):
    """How an endpoint writes its events. `done` ends a stream."""

    done: bytes

    def frame(self, data: Json) -> bytes: ...

    def failure(self, error: ApiError) -> Json:
        """The event that ends a stream which cannot go on."""
        ...


class PlainEvents:
    """OpenAI's first way: events without a name, and a word at the end."""

    __slots__ = ()
    done = b"data: [DONE]\n\n"

    def frame(self, data: Json) -> bytes:
        return b"data: " + orjson.dumps(data) + b"\n\n"

    def failure(self, error: ApiError) -> Json:
        return OPENAI.write(error)


class TypedEvents:
    """Events named by the `type` of their data; the last one's type says that it is the last."""

    __slots__ = ()
    done = b""

    def frame(self, data: Json) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


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


class Pulse:
    """Calls `beat` whenever nothing was written for `KEEP_ALIVE_SECONDS`; `wrote` is when something was."""

    def __init__(self, beat: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.clock = asyncio.get_running_loop().time
        self.wrote = self.clock()
        self.beating: asyncio.Task[None] | None = None
        self._beat = beat
        self._set(KEEP_ALIVE_SECONDS)

    def stop(self) -> None:
        self._timer.cancel()
        if self.beating is not None:
            self.beating.cancel()

    def _set(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        left = self.wrote + KEEP_ALIVE_SECONDS - self.clock()
        if left <= 0 and (self.beating is None or self.beating.done()):
            self.beating = asyncio.get_running_loop().create_task(self._beat())
        self._set(left if left > 0 else KEEP_ALIVE_SECONDS)


class EventStream(Response):
    """A response of the frames in `events`, inside `guard`, which is left when the stream ends however it ends.

    The status goes out with the first frame, so a request that fails before its first token, or before a silence has
    lasted long enough for a comment, gets a plain error;
    one that fails later gets an error event and no proper end.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        guard: AbstractContextManager[object],
        expired: asyncio.Future[None],
        framing: Framing,
    ) -> None:
        super().__init__()
        self._events = events
        self._guard = guard
        self._expired = expired
        self._framing = framing
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._guard:
                await while_connected(receive, self._expired, self._send_all(send, scope["noria.send"]))
        except ClientGone:
            raise
        except Exception as error:
            if self._started:
                event = self._framing.failure(as_api_error(error))
                await self._send(send, self._framing.frame(event), more=False)
            else:
                dialect = scope["noria.record"].policy.dialect
                await error_response(error, dialect)(scope, receive, send)

    async def _send_all(self, send: Send, send_directly: Send) -> None:
        """The start goes through every middleware, the frames, which none of them looks at, past all but the server."""
        pulse = Pulse(lambda: self._send(send_directly if self._started else send, KEEP_ALIVE))
        try:
            async for body in self._events:
                if pulse.beating is not None:
                    await pulse.beating
                await self._send(send_directly if self._started else send, body)
                pulse.wrote = pulse.clock()
        finally:
            pulse.stop()
        await self._send(send_directly if self._started else send, self._framing.done, more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": body, "more_body": more})
