"""Server-sent events: frames, the writer of a stream, and the watch over a connection."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

import orjson
from starlette.types import Receive, Send

from service.errors.dialects import OLLAMA, OPENAI
from service.errors.errors import ApiError, Unavailable
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

    def identified(self, frame: bytes, id: bytes) -> bytes:
        """Return a frame with an id; of an empty frame only how that begins."""

    @property
    def sign(self) -> bytes:
        """Return a sign of life between frames with ids: no event, and no end of one for any client library."""

    def failure(self, error: ApiError) -> Json:
        """Return the event that ends a stream after an error."""

    def keep_alive(self) -> tuple[bytes, float]:
        """Return the next sign of life of a silent stream, and the seconds until the one after it."""


class Comments:
    """Signs of life as comments. OpenAI's packages take an empty line after one for an event once there was an id."""

    __slots__ = ()
    sign = b": keep-alive\n"

    def identified(self, frame: bytes, id: bytes) -> bytes:
        return b"id: %b\n%b" % (id, frame)

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


class JsonLines:
    """Lines of JSON, without names and marks. A space before a line is no content, and clients read lines alone."""

    __slots__ = ()
    done = b""
    sign = b" "

    def frame(self, data: Json) -> bytes:
        return orjson.dumps(data) + b"\n"

    def identified(self, frame: bytes, id: bytes) -> bytes:
        return b'{"event_id":"%b",%b' % (id, frame[1:])

    def failure(self, error: ApiError) -> Json:
        return OLLAMA.write(error)

    def keep_alive(self) -> tuple[bytes, float]:
        return self.sign, KEEP_ALIVE_SECONDS


class Watch:
    """The watch over a connection while its request is served.

    The client that leaves (ClientGone), or the end of a drain's time (Unavailable), ends the work once that is allowed.
    """

    def __init__(self) -> None:
        self._allowed = False
        self._cancelled = False
        self._failure: Exception | None = None

    def allow(self) -> None:
        """Let the work be ended from now on. Raises the error of an end that has come already."""
        self._allowed = True
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure

    async def while_connected(self, receive: Receive, expired: asyncio.Future[None], work: Awaitable[T]) -> T:
        """Return the result of `work`, or cancel it and raise. `expired` is done at the end of a drain's time.

        The work runs in the task of the caller: nothing comes between its end and what follows.
        """
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        before = task.cancelling()

        def end(failure: Exception) -> None:
            if self._failure is None and not self._cancelled:
                self._failure, self._cancelled = failure, self._allowed
                if self._cancelled:
                    task.cancel()

        def leave(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                done.exception()  # Ray raises one of its own where ASGI sends a message: the client is gone as well
                end(ClientGone())

        def expire(done: asyncio.Future[None]) -> None:
            end(Unavailable("the server is shutting down", "shutting_down"))

        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(leave)
        expired.add_done_callback(expire)
        try:
            return await work
        except asyncio.CancelledError:
            if self._cancelled and task.uncancel() <= before and (failure := self._failure) is not None:
                self._failure = None  # it would hold the frames that hold it
                raise failure from None
            raise
        finally:
            gone.cancel()
            expired.remove_done_callback(expire)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventWriter:
    """Writes the frames of a stream to its client, and signs of life in a silence.

    The status is sent with the first frame or sign of life (`started`): a request that fails before that gets a plain
    error. `send` passes every middleware, `send_directly` none of them: no middleware reads frames. `silence` is the
    longest one in seconds (None: that of proxies).
    """

    def __init__(
        self, send: Send, send_directly: Send, framing: Framing, media_type: str, silence: float | None = None
    ) -> None:
        self.started = False
        self._send = send
        self._send_directly = send_directly
        self._framing = framing
        self._media_type = media_type
        self._sign: asyncio.Task[None] | None = None
        self._seconds = KEEP_ALIVE_SECONDS if silence is None else silence
        self._silence = Deadline(self._keep_alive)
        self._silence.set(self._seconds)

    async def write(self, frames: Sequence[bytes]) -> None:
        """Send several frames at once, as soon as the client has read what was sent before."""
        self._silence.clear()  # a large event leaves in pieces, and no sign of life may come between them
        if self._sign is not None:
            await self._sign
        await self._put(b"".join(frames))
        self._silence.set(self._seconds)

    async def end(self) -> None:
        """Send the end of a complete stream."""
        self.close()
        await self._put(self._framing.done, more=False)

    async def fail(self, error: ApiError) -> None:
        """Send the event of an error in place of the end."""
        self.close()
        await self._put(self._framing.frame(self._framing.failure(error)), more=False)

    def close(self) -> None:
        """Send no more signs of life."""
        self._silence.close()
        if self._sign is not None:
            self._sign.cancel()

    def _keep_alive(self) -> None:
        seconds = self._seconds
        if self._sign is None or self._sign.done():
            body, seconds = self._framing.keep_alive()
            self._sign = asyncio.create_task(self._put(body))
        self._silence.set(seconds)

    async def _put(self, body: bytes, *, more: bool = True) -> None:
        send = self._send_directly if self.started else self._send
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"%b; charset=utf-8" % self._media_type.encode()), *HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
