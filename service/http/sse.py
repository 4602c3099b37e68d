"""Server-sent events: frames, and a response that detects a disconnected client."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors.dialects import OLLAMA, OPENAI, Dialect, error_response
from service.errors.errors import ApiError, Unavailable, as_api_error
from service.http.connection.flow import Deadline

HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_SECONDS = 15.0
"""Seconds without an event after which the server sends a sign of life, because proxies close silent connections."""

T = TypeVar("T")
Json = dict[str, Any]


class ClientGone(Exception):
    """The client closed the connection before its response was complete."""


class Framing(Protocol):
    """The format of an endpoint's events. `done` ends a stream."""

    @property
    def done(self) -> bytes: ...

    def frame(self, data: Json) -> bytes: ...

    def failure(self, error: ApiError) -> Json:
        """The event that ends a stream after an error."""
        ...

    def keep_alive(self) -> tuple[bytes, float]:
        """The next sign of life of a silent stream, and the seconds until the one after it."""
        ...


class Comments:
    """The signs of life that no client library hands on."""

    __slots__ = ()

    def keep_alive(self) -> tuple[bytes, float]:
        return KEEP_ALIVE, KEEP_ALIVE_SECONDS


class PlainEvents(Comments):
    """The format of completions and chat: events without a name, and `[DONE]` at the end."""

    __slots__ = ()
    done = b"data: [DONE]\n\n"

    def frame(self, data: Json) -> bytes:
        return b"data: " + orjson.dumps(data) + b"\n\n"

    def failure(self, error: ApiError) -> Json:
        return OPENAI.write(error)


class TypedEvents(Comments):
    """Events that are named by the `type` of their data. The type of the last one marks the end."""

    __slots__ = ()
    done = b""

    def frame(self, data: Json) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


class Lines:
    """Lines of JSON, without names and marks. A space before a line is no content, and clients read lines alone."""

    __slots__ = ()
    done = b""

    def frame(self, data: Json) -> bytes:
        return orjson.dumps(data) + b"\n"

    def failure(self, error: ApiError) -> Json:
        return OLLAMA.write(error)

    def keep_alive(self) -> tuple[bytes, float]:
        return b" ", KEEP_ALIVE_SECONDS


async def while_connected(receive: Receive, expired: asyncio.Future[None], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ClientGone when the client disconnects, Unavailable when `expired` is done.

    Both cancel `work`. `expired` is done at the end of a drain's time.
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
    """A response of frames, several at a time. It exits `guard` when the stream ends for any reason.

    The status is sent with the first frame or sign of life. A request that fails before that gets a plain error
    response. One that fails later gets an error event, and no `done`.
    """

    def __init__(
        self,
        frames: AsyncIterator[Sequence[bytes]],
        guard: AbstractContextManager[object],
        expired: asyncio.Future[None],
        framing: Framing,
    ) -> None:
        super().__init__()
        self._frames = frames
        self._guard = guard
        self._expired = expired
        self._framing = framing
        self._started = False
        self._media_type = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = scope["noria.record"]
        dialect: Dialect = record.policy.dialect
        self._media_type = dialect.stream.encode()
        try:
            with self._guard:
                await while_connected(receive, self._expired, self._send_all(send, scope["noria.send"]))
        except ClientGone:
            raise
        except Exception as error:
            failure = as_api_error(error)
            record.note_error(failure)
            if self._started:
                await self._send(send, self._framing.frame(self._framing.failure(failure)), more=False)
            else:
                await error_response(failure, dialect)(scope, receive, send)

    async def _send_all(self, send: Send, send_directly: Send) -> None:
        """Send the start through every middleware, and the frames past them: no middleware reads frames."""
        sign: asyncio.Task[None] | None = None

        def keep_alive() -> None:
            nonlocal sign
            seconds = KEEP_ALIVE_SECONDS
            if sign is None or sign.done():
                body, seconds = self._framing.keep_alive()
                sign = asyncio.create_task(self._send(send_directly if self._started else send, body))
            silence.set(seconds)

        silence = Deadline(keep_alive)
        silence.set(KEEP_ALIVE_SECONDS)
        try:
            async for frames in self._frames:
                silence.clear()  # a large event leaves in pieces, and no sign of life may come between them
                if sign is not None:
                    await sign
                await self._send(send_directly if self._started else send, b"".join(frames))
                silence.set(KEEP_ALIVE_SECONDS)
        finally:
            silence.close()
            if sign is not None:
                sign.cancel()
        await self._send(send_directly if self._started else send, self._framing.done, more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", b"%b; charset=utf-8" % self._media_type), *HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
