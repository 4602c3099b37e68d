"""One connection. It reads requests, lets the application answer them in order, and ends when a deadline passes."""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import httptools
import uvicorn
from uvicorn.server import ServerState

from service.errors.errors import ApiError, HttpError, Unavailable
from service.errors.statuses import STATUSES
from service.http.connection import http2
from service.http.connection.exchange import BUFFERED_BYTES, Exchange, Proxies, refusal, scope_of
from service.http.connection.flow import Inbox, Outbox
from service.http.connection.limits import LIMITS, Places
from service.http.connection.reader import RequestHead, RequestReader

PROBES = frozenset({b"/live", b"/ready", b"/health"})
"""Paths that are answered beyond the limits of connections: a full server is alive."""
PARSED_BYTES = 2**13
"""Bytes that one connection parses before others go on."""
UNREAD_BYTES = 2**15
"""Bytes of later requests that wait for the response to an earlier one, before the connection stops reading."""


class ConnectionState(Enum):
    """The state of a connection: it waits for a request; reads a head; reads the body of the request that it answers;
    answers a whole request; answers those before one that it refuses; drops what still comes; or ends.
    """

    IDLE, HEAD, BODY, ANSWERING, REFUSING, LINGERING, CLOSING = range(7)


PARSING = (ConnectionState.IDLE, ConnectionState.HEAD, ConnectionState.BODY)
"""In other states nothing is parsed."""


class Connection(asyncio.Protocol):
    """The protocol that uvicorn makes for each connection. `config`, `server_state` and `app_state` are uvicorn's.

    The end of the client's input ends the connection, as in uvicorn: the client is gone.
    """

    # Private: uvicorn documents no interface for protocols. We use `loaded_app`, `asgi_version` and `root_path` of its
    # Config; `connections`, `tasks` and `default_headers` of its ServerState. pyproject.toml bounds its version.

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        places: Places,
        proxies: Proxies,
        on_refused: Callable[[str], None],
        **_: Any,
    ) -> None:
        self._config = config
        self._server = server_state
        self._app_state = app_state
        self._limits = LIMITS
        self._places = places
        self._proxies = proxies
        self._on_refused = on_refused
        self._reader = RequestReader(self._limits, self)
        self._state = ConnectionState.IDLE
        self._exchanges: deque[Exchange] = deque()  # in the order of their requests; the first one is answered
        self._refusal = b""  # the last response, to a request that cannot be read
        self._linger_bytes = 0  # that the client may still send
        self._parses_soon = False

    # Called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(transport, self._limits, self._too_slow)
        self._outbox = Outbox(transport, self._limits.unread_seconds, partial(self._cut, "unread"))
        self._server.connections.add(self)  # type: ignore[arg-type]
        client = _address(transport.get_extra_info("peername"))
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        self._scope = {
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "server": _address(transport.get_extra_info("sockname")),
            "client": client,
            "scheme": "https" if self._encrypted else "http",
            "root_path": self._config.root_path,
            "state": self._app_state,
        }
        self._place = self._places.enter(client[0] if client else None, partial(self._cut, "full"))
        self._inbox.deadline.set(self._limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._places.exit(self._place)
        self._forget()
        self._inbox.deadline.close()
        self._outbox.lost()

    def data_received(self, data: bytes) -> None:
        if self._state is ConnectionState.LINGERING:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self._transport.abort()
        elif self._state not in (ConnectionState.REFUSING, ConnectionState.CLOSING):
            self._inbox.unread += data
            if not self._parses_soon:
                self._parse()

    def eof_received(self) -> None:
        self._close()

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def shutdown(self) -> None:
        """End when the present request is answered. uvicorn calls this at the end of the server."""
        while len(self._exchanges) > 1:
            self._exchanges.pop()
        if self._exchanges:
            self._exchanges[0].keep_alive = False
        else:
            self._close()

    # Called by the reader

    def on_request(self) -> None:
        if self._state is ConnectionState.IDLE:
            self._state = ConnectionState.HEAD
            self._inbox.deadline.set(self._limits.head_seconds)

    def on_head(self, head: RequestHead) -> ApiError | None:
        """Take the head; returns why the request is refused."""
        if problem := head.violation():
            return HttpError(400, problem)
        try:
            scope = scope_of(head, self._scope)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            return HttpError(400, "the URL of the request is not valid")
        if self._place.refusal is not None and head.url.partition(b"?")[0] not in PROBES:
            return Unavailable(f"{self._place.refusal}; try again later", "too_many_connections")
        self._proxies.undo(scope)
        self._places.work(self._place)
        fields, resume = self._server.default_headers, self._inbox.resume
        exchange = Exchange(self._outbox, scope, fields, head, want_body=resume, finished=self._go_on)
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._answer()
        return None

    def on_part(self, part: bytes) -> None:
        if (arriving := self._arriving) is not None:
            arriving.feed(part)
            if self._state is ConnectionState.BODY:
                self._inbox.count_body(len(part))

    def on_end(self) -> None:
        if (arriving := self._arriving) is not None:
            arriving.end()
        if self._state is ConnectionState.BODY:
            self._state = ConnectionState.ANSWERING
            self._inbox.end_body()

    # Called by the exchanges

    def _go_on(self, exchange: Exchange) -> None:
        """Go on with the next request, which may have arrived already. Not here: the caller may be the parser."""
        if self._state is ConnectionState.CLOSING:
            return
        self._exchanges.popleft()
        if not exchange.keep_alive:
            self._end(0 if exchange.whole else self._limits.linger_bytes)
        elif self._exchanges:
            self._answer()
            self._parse_soon()
        elif self._state is ConnectionState.REFUSING:
            self._refuse_now()
        else:
            in_head = self._reader.in_head
            self._state = ConnectionState.HEAD if in_head else ConnectionState.IDLE
            self._inbox.deadline.set(self._limits.head_seconds if in_head else self._limits.idle_seconds)
            self._places.wait(self._place)
            self._parse_soon()

    @property
    def _arriving(self) -> Exchange | None:
        """Return the exchange whose request is not whole."""
        return self._exchanges[-1] if self._exchanges and not self._exchanges[-1].whole else None

    def _parse_soon(self) -> None:
        if not self._parses_soon and (self._inbox.unread or self._inbox.paused):
            self._parses_soon = True
            self._loop.call_soon(self._parse)

    def _parse(self) -> None:
        """Parse some of the bytes that have arrived; other connections then go on. Pause reading while many wait."""
        self._parses_soon = False
        if self._inbox.unread and self._state in PARSING:
            try:
                self._reader.feed(self._inbox.take(min(self._reader.quota, PARSED_BYTES)))
            except ApiError as error:
                self._refuse(error)
            if self._state in PARSING:
                self._parse_soon()
        unwanted = self._state is ConnectionState.BODY and self._exchanges[0].buffered > BUFFERED_BYTES
        if unwanted or len(self._inbox.unread) > UNREAD_BYTES:
            self._inbox.pause()
        elif self._inbox.paused:
            self._inbox.resume()

    def _answer(self) -> None:
        """Let the application answer the first request."""
        exchange = self._exchanges[0]
        task = self._loop.create_task(exchange.run(self._config.loaded_app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)
        if self._state is not ConnectionState.REFUSING:
            self._state = ConnectionState.ANSWERING if exchange.whole else ConnectionState.BODY
            if self._state is ConnectionState.BODY:
                self._inbox.begin_body(exchange.length)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error after the responses to the requests before, and end the connection."""
        self._on_refused(STATUSES[error.status].refused or "malformed")
        self._state = ConnectionState.REFUSING
        own_fields = self._server.default_headers
        self._refusal = http2.refusal(error) if self._reader.is_http2 else refusal(error, own_fields)
        self._inbox.drop()
        if (arriving := self._arriving) is not None:  # its end will never come
            self._exchanges.pop()
            arriving.leave()
            if arriving.started:
                self._transport.abort()
                return
        if not self._exchanges:
            self._refuse_now()

    def _refuse_now(self) -> None:
        self._outbox.write(self._refusal)
        self._end(self._limits.head_bytes)

    def _end(self, linger_bytes: int) -> None:
        """End the connection after what was written. The client may send `linger_bytes` more, which are dropped."""
        if not linger_bytes or self._transport.is_closing():
            self._close()
            return
        self._state = ConnectionState.LINGERING
        self._linger_bytes = linger_bytes
        self._inbox.drop()
        self._inbox.resume()
        if not self._encrypted:  # TLS cannot end one direction
            self._transport.write_eof()
        self._inbox.deadline.set(self._limits.linger_seconds)

    def _close(self) -> None:
        self._forget()
        self._outbox.close()

    def _forget(self) -> None:
        """Answer no request any more."""
        self._state = ConnectionState.CLOSING
        self._inbox.drop()
        for exchange in self._exchanges:
            exchange.leave()
        self._exchanges.clear()

    def _too_slow(self) -> None:
        """Refuse the request whose deadline for reading has passed, or close the connection."""
        if self._state is ConnectionState.HEAD:
            what = f"the header of the request did not arrive within {self._limits.head_seconds:g} s"
            self._refuse(HttpError(408, what))
        elif self._state is ConnectionState.BODY:
            self._refuse(HttpError(408, "the body of the request did not arrive in the time that its size allows"))
        else:
            self._close()

    def _cut(self, reason: str) -> None:
        self._on_refused(reason)
        self._transport.abort()


def _address(name: Any) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None for a socket of the file system."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
