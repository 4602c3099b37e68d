"""One request and its response: ASGI's `receive` and `send`, and their bytes on the connection."""

import asyncio
import http
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from service.errors.dialects import OPENAI, error_response
from service.errors.errors import ApiError
from service.http.connection.outbox import Outbox
from service.http.connection.reader import Fields, Head

log = logging.getLogger("noria")

BUFFERED_BYTES = 2**16
"""Bytes of a body that wait for the application before the connection stops reading."""
PIECE_BYTES = 2**14
"""Bytes of a response that are written at once. The client must read about as much in the time that it has."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WITHOUT_BODY = (204, 304)
STATUS_LINES = {int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in http.HTTPStatus}


class Owner(Protocol):
    """The connection as its exchanges see it."""

    def want_body(self) -> None:
        """The application waits for more of the body."""
        ...

    def finished(self, exchange: "Exchange") -> None:
        """The response is complete."""
        ...


class Exchange:
    """One request and its response. `keep_alive`: another request may follow, if the client can tell where this ends.

    The head of a response waits for its first byte of a body, and both are written at once.
    """

    def __init__(self, owner: Owner, outbox: Outbox, scope: Scope, own_fields: Fields, head: Head) -> None:
        self.scope = scope
        self.started = False
        self.complete = False
        self.keep_alive = head.keep_alive and head.version != "1.0"
        self.whole = False
        """Whether the request has arrived to its end."""
        self.length = head.length
        """The size of its body, if it is known."""
        self._expects_continue = (head.value(b"expect") or b"").lower() == b"100-continue"
        self._owner = owner
        self._outbox = outbox
        self._own_fields = own_fields
        self._parts: list[bytes] = []
        self._taken = False  # whether the application has the whole body: what it receives next is the disconnect
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False
        self._head = b""
        self._chunked = False
        self._left: int | None = None  # bytes of the body that the response has promised

    @property
    def buffered(self) -> int:
        """Bytes of the body that the application has not taken."""
        return sum(map(len, self._parts))

    def feed(self, part: bytes) -> None:
        """Take a part of the body. A complete response needs none."""
        if not self.complete:
            self._parts.append(part)
            self._wake()

    def end(self) -> None:
        """The request is whole."""
        self.whole = True
        self._wake()

    def leave(self) -> None:
        """The client is gone."""
        self._gone = True
        self._wake()

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer. It must complete its response: it has an answer to every error."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:
            log.error("internal error", exc_info=error)
        if self.complete or self._gone:
            return
        if self.started:
            self._outbox.abort()
        else:
            error_ = ApiError("internal error", code="internal_error")
            await error_response(error_, OPENAI)(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        if self._expects_continue and not self.started:
            self._expects_continue = False
            self._outbox.write(CONTINUE)
        self._owner.want_body()
        while not (self._parts or self._gone or self.complete or (self.whole and not self._taken)):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone or self.complete:
            return {"type": "http.disconnect"}
        body, self._parts = b"".join(self._parts), []
        self._taken = self.whole
        return {"type": "http.request", "body": body, "more_body": not self.whole}

    async def send(self, message: Message) -> None:
        if self._gone:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
            return
        if message["type"] != "http.response.body" or not self.started or self.complete:
            raise RuntimeError(f"unexpected message {message['type']!r}")
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._outbox.drained is not None:
            await asyncio.shield(self._outbox.drained)
        if len(body) > PIECE_BYTES:
            body = await self._last_piece(body)
        if not self._gone:
            self._write(body, more)

    async def _last_piece(self, body: bytes) -> bytes:
        """Write the other pieces, as the client reads them. A body that is cut off ends the connection."""
        start = 0
        try:
            while len(body) - start > PIECE_BYTES and not self._gone:
                self._write(body[start : start + PIECE_BYTES], True)
                start += PIECE_BYTES
                if self._outbox.drained is not None:
                    await asyncio.shield(self._outbox.drained)
        except asyncio.CancelledError:
            self._outbox.abort()
            raise
        return body[start:]

    def _start(self, status: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        if self.started:
            raise RuntimeError("the response has started already")
        self.started = True
        lines = [*self._own_fields, *fields]
        length = next((int(value) for name, value in lines if name == b"content-length"), None)
        if self.scope["method"] == "HEAD" or status in WITHOUT_BODY:
            self._left = 0
        elif length is not None:
            self._left = length
        elif self.scope["http_version"] == "1.0":
            self.keep_alive = False  # the end of the connection is the end of the body
        else:
            self._chunked = True
            lines.append((b"transfer-encoding", b"chunked"))
        if not self.whole:
            self.keep_alive = False  # nobody reads the rest of the request
        if not self.keep_alive:
            lines.append((b"connection", b"close"))
        self._head = head_bytes(status, lines)

    def _write(self, body: bytes, more: bool) -> None:
        data = self._framed(body)
        if not more and self._chunked:
            data += b"0\r\n\r\n"
        if self._left and not more:
            self._outbox.abort()
            raise RuntimeError(f"the response is {self._left} bytes shorter than its header says")
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self._outbox.write(data)
        if not more:
            self.complete = True
            self._wake()
            self._owner.finished(self)

    def _framed(self, body: bytes) -> bytes:
        """A part of the body as the client can read it."""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        if self._left is None:
            return body
        if self.scope["method"] == "HEAD":
            return b""
        if len(body) > self._left:
            self._outbox.abort()
            raise RuntimeError("the response is longer than its header says")
        self._left -= len(body)
        return body

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def head_bytes(status: int, fields: Fields) -> bytes:
    """The head of a response. Raises RuntimeError for a field that would end early."""
    lines = b"\r\n".join([STATUS_LINES[status], *(b"%b: %b" % field for field in fields), b"", b""])
    if lines.count(b"\n") != len(fields) + 2 or lines.count(b"\r") != len(fields) + 2:
        raise RuntimeError("a header field of the response has a line break")
    return lines


def refusal(error: ApiError, own_fields: Fields) -> bytes:
    """The response to a request that no application sees. The connection ends after it."""
    response = error_response(error, OPENAI)
    body: Any = response.body
    return head_bytes(response.status_code, [*own_fields, *response.raw_headers, (b"connection", b"close")]) + body
