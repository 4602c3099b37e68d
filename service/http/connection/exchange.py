"""One request and its response: ASGI's scope, `receive` and `send`, and their bytes on the connection."""

import asyncio
import http
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope

from service.errors.dialects import OPENAI, error_response
from service.errors.errors import ApiError
from service.http.connection.flow import Outbox
from service.http.connection.reader import Fields, RequestHead

log = logging.getLogger("noria")

BUFFERED_BYTES = 2**16
"""Bytes of a body that wait for the application before the connection stops reading."""
PIECE_BYTES = 2**14
"""Bytes of a response that are written at once. The client must read about as much in the time that it has."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WITHOUT_BODY = (204, 304)
STATUS_LINES = {int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in http.HTTPStatus}

Address = IPv4Address | IPv6Address
FORWARDED_FOR, FORWARDED_PROTO = b"x-forwarded-for", b"x-forwarded-proto"
SCHEMES = (b"http", b"https")
HOP = re.compile(r"\[(.+)\](?::\d+)?|([^:]+):\d+")
"""An address with a port, or an IPv6 address in brackets."""
SCOPE = re.compile(r"[A-Za-z0-9._-]{1,32}")
"""The name of an interface, after an IPv6 address and %."""


def scope_of(head: RequestHead, connection: Scope) -> Scope:
    """Return the scope of a request; `connection` has its part that is equal for all requests of a connection.

    Raises HttpParserInvalidURLError or UnicodeDecodeError for its URL.
    """
    url = httptools.parse_url(head.url)
    raw_path: bytes = url.path or b"/"
    return {
        **connection,
        "type": "http",
        "http_version": head.version,
        "method": head.method.decode("ascii"),
        "path": unquote(raw_path.decode("ascii")) if b"%" in raw_path else raw_path.decode("ascii"),
        "raw_path": raw_path,
        "query_string": url.query or b"",
        "headers": head.fields,
        "state": connection["state"].copy(),
    }


class Proxies:
    """The reverse proxies, which change a request's client address, its scheme and the prefix of its path.

    `undo` removes `prefix` from a path that begins with it: some proxies leave it there. X-Forwarded-For and
    X-Forwarded-Proto count if the peer is in one of the networks `believed`, or connects by a Unix socket. `Forwarded`
    and X-Forwarded-Prefix never count: a proxy that does not write them passes on the client's claims.
    """

    def __init__(self, prefix: str | None, believed: Sequence[IPv4Network | IPv6Network]) -> None:
        self._prefix = prefix or ""
        self._believed = believed

    def undo(self, scope: Scope) -> None:
        """Change the scope to what the client sent."""
        if self._prefix and scope["raw_path"].startswith(b"%b/" % self._prefix.encode()):
            scope["raw_path"] = scope["raw_path"][len(self._prefix) :]
            scope["path"] = scope["path"][len(self._prefix) :]
        peer = scope["client"]
        if peer is None or self._believes(client_address(peer[0])):
            self._look_behind(scope)

    def _look_behind(self, scope: Scope) -> None:
        """Replace the address and the scheme of the proxy by those of the client."""
        hops = [hop for value in _values(scope, FORWARDED_FOR) for hop in value.decode("latin-1").split(",")]
        if (client := self._client(hops)) is not None:
            scope["client"] = (str(client), 0)
        if (scheme := next(reversed(_values(scope, FORWARDED_PROTO)), b"").strip()) in SCHEMES:
            scope["scheme"] = scheme.decode()

    def _client(self, hops: Sequence[str]) -> Address | None:
        """Return the client's address. The walk begins at the last hop: each proxy adds the address of its peer.

        The walk stops at an address that is not a believed proxy's, and before a hop that is no address.
        """
        client = None
        for hop in reversed(hops):
            address = client_address(hop.strip())
            client = address or client
            if not self._believes(address):
                break
        return client

    def _believes(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._believed)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for other, value in scope["headers"] if other == name]


def client_address(hop: str) -> Address | None:
    """Return the address in a hop, which may have a port; None for any other text."""
    if (match := HOP.fullmatch(hop)) is not None:
        hop = match[1] or match[2]
    if "%" in hop and not SCOPE.fullmatch(hop.partition("%")[2]):  # ip_address takes any text here
        return None
    try:
        return ip_address(hop)
    except ValueError:
        return None


class Exchange:
    """One request and its response. `keep_alive`: another request may follow, if the client can tell where this ends.

    The head of a response waits for the first byte of its body, and both are written at once. The exchange calls
    `want_body` when the application waits for more of the body, and `finished` when the response is complete.
    """

    def __init__(
        self,
        outbox: Outbox,
        scope: Scope,
        own_fields: Fields,
        head: RequestHead,
        *,
        want_body: Callable[[], None],
        finished: Callable[["Exchange"], None],
    ) -> None:
        self.scope = scope
        self.started = False
        self.complete = False
        self.keep_alive = head.keep_alive and head.version != "1.0"
        self.whole = False
        """Whether the request has arrived to its end."""
        self.length = head.length
        """The size of its body, if it is known."""
        self._expects_continue = (head.value(b"expect") or b"").lower() == b"100-continue"
        self._want_body = want_body
        self._finished = finished
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
        """Return the number of bytes of the body that the application has not taken."""
        return sum(map(len, self._parts))

    def feed(self, part: bytes) -> None:
        """Take a part of the body. A complete response needs none."""
        if not self.complete:
            self._parts.append(part)
            self._wake()

    def end(self) -> None:
        """Note that the request is whole."""
        self.whole = True
        self._wake()

    def leave(self) -> None:
        """Note that the client is gone."""
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
        self._want_body()
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
            self._finished(self)

    def _framed(self, body: bytes) -> bytes:
        """Return a part of the body as the client can read it."""
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
    """Return the head of a response. Raises RuntimeError for a field that would end early."""
    lines = b"\r\n".join([STATUS_LINES[status], *(b"%b: %b" % field for field in fields), b"", b""])
    if lines.count(b"\n") != len(fields) + 2 or lines.count(b"\r") != len(fields) + 2:
        raise RuntimeError("a header field of the response has a line break")
    return lines


def refusal(error: ApiError, own_fields: Fields) -> bytes:
    """Return the response to a request that no application sees. The connection ends after it."""
    response = error_response(error, OPENAI)
    body: Any = response.body
    return head_bytes(response.status_code, [*own_fields, *response.raw_headers, (b"connection", b"close")]) + body
