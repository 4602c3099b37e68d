"""One connection: it reads requests, lets the application answer them in order, and ends when a deadline passes."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import Scope
from uvicorn.server import ServerState

from service.errors.errors import ApiError, HttpError, Unavailable
from service.errors.statuses import STATUSES
from service.http.connection.deadline import Deadline
from service.http.connection.exchange import BUFFERED_BYTES, CONTINUE, Exchange, refusal
from service.http.connection.limits import Limits
from service.http.connection.peer import address, bytes_acknowledged, has_reset
from service.http.connection.places import Places
from service.http.connection.reader import Head, RequestReader
from service.http.connection.rules import violation

PROBES = frozenset({b"/live", b"/ready", b"/health"})
"""The paths that reserved places serve."""
PARSED_BYTES = 2**13
"""Bytes that one connection parses before others have their turn."""
UNREAD_BYTES = 2**15
"""Bytes of later requests that wait for the response to an earlier one, before the connection stops reading."""
PROBE_SECONDS = 0.3
"""After this time without a response the server tests whether a client that sends no more still listens."""


class Connection(asyncio.Protocol):
    """The protocol that uvicorn makes for each connection. `config`, `server_state` and `app_state` are uvicorn's.

    After an error in the bytes of a request the client gets it as a response, and the connection ends.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        limits: Limits,
        places: Places,
        on_refused: Callable[[str], None],
        **_: Any,
    ) -> None:
        self._config = config
        self._server = server_state
        self._app_state = app_state
        self._limits = limits
        self._places = places
        self._on_refused = on_refused
        self._reader = RequestReader(limits, self)
        self._exchanges: deque[Exchange] = deque()  # in the order of their requests; the first one is answered
        self._arriving: Exchange | None = None
        self._unread = bytearray()
        self._refused: bytes | None = None  # the last response, to a request that cannot be read
        self._lingering: int | None = None  # bytes that the client may still send, which nobody reads
        self._half_closed = False
        self._closing = False
        self._paused = False
        self.drained: asyncio.Future[None] | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._parsing = False  # whether `_read_on` will be called soon
        self._paused_at = 0.0
        self._n_taken = 0  # bytes that the client had taken when its deadline was set
        self._body_began = 0.0
        self._body_bytes = 0  # known from the head, or received so far
        self._received = 0

    # Called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._server.connections.add(self)  # type: ignore[arg-type]
        self._client = address(transport.get_extra_info("peername"))
        self._local = address(transport.get_extra_info("sockname"))
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        self._place = self._places.enter(self._client[0] if self._client else None, self._leave)
        self._reading = Deadline(self._too_slow)
        self._writing = Deadline(self._not_read)
        self._reading.set(self._limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._places.exit(self._place)
        self._reading.close()
        self._writing.close()
        if self._probe is not None:
            self._probe.cancel()
        self._closing = True
        for exchange in self._exchanges:
            exchange.leave()
        self._exchanges.clear()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._lingering -= len(data)
            if self._lingering < 0:
                self._transport.abort()
        elif self._refused is None and not self._closing:
            self._unread += data
            if not self._parsing:
                self._read()
            self._limit_unread()

    def eof_received(self) -> bool:
        """A client that has sent whole requests may still read: keep the connection until they are answered.

        HTTP/1.0 has no interim response to tell such a client from one that is gone: there it counts as gone.
        """
        answers = bool(self._exchanges) and self._exchanges[0].scope["http_version"] != "1.0"
        whole = self._arriving is None or bool(self._unread)  # what is unread may end the request
        self._half_closed = answers and whole and not self._encrypted and self._lingering is None
        if self._half_closed:
            self._probe = self._loop.call_later(PROBE_SECONDS, self._probe_client, True)
        return self._half_closed

    def pause_writing(self) -> None:
        self.drained = self.drained or self._loop.create_future()
        self._expect_reading()

    def resume_writing(self) -> None:
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)
        self.drained = None
        if not self._closing:
            self._writing.clear()

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
        self._reading.set(self._limits.head_seconds)

    def on_head(self, head: Head) -> ApiError | None:
        if problem := violation(head):
            return HttpError(400, problem)
        try:
            scope = self._scope(head)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            return HttpError(400, "the URL of the request is not valid")
        if self._place.refusal is not None and scope["raw_path"] not in PROBES:
            return Unavailable(f"{self._place.refusal}; try again later", "too_many_connections")
        self._places.work(self._place)
        exchange = Exchange(self, scope, self._server.default_headers, keep_alive=head.keep_alive)
        exchange.expects_continue = (head.value(b"expect") or b"").lower() == b"100-continue"
        self._arriving = exchange
        self._exchanges.append(exchange)
        self._body_began, self._body_bytes, self._received = self._loop.time(), head.length or 0, 0
        self._reading.set(self._limits.body_seconds)
        if len(self._exchanges) == 1:
            self._answer(exchange)
        return None

    def on_part(self, part: bytes) -> None:
        if self._arriving is None:
            return
        self._arriving.feed(part)
        self._received += len(part)
        self._body_bytes = max(self._body_bytes, self._received)
        due = self._body_began + self._limits.body_seconds + self._body_bytes / self._limits.body_rate
        self._reading.set(min(self._limits.body_seconds, max(0.0, due - self._loop.time())))

    def on_end(self) -> None:
        self._reading.clear()
        if self._arriving is not None:
            self._arriving.end()
            self._arriving = None

    # Called by the exchanges

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def want_body(self) -> None:
        self._resume()

    def abort(self) -> None:
        self._transport.abort()

    def finished(self, exchange: Exchange) -> None:
        """Go on with the next request, which may have arrived already. Not here: the caller may be the parser."""
        self._server.total_requests += 1
        if self._closing:
            return
        self._exchanges.popleft()
        if not exchange.keep_alive:
            self._end(0 if exchange.whole else self._limits.linger_bytes)
        elif self._exchanges:
            self._answer(self._exchanges[0])
            self._read_soon()
        elif self._refused is not None:
            self._send_refusal()
        elif self._half_closed and not self._unread:
            self._close()
        else:
            self._reading.set(self._limits.head_seconds if self._reader.in_head else self._limits.idle_seconds)
            self._places.wait(self._place)
            if self._unread or self._paused:
                self._read_soon()

    def _read_soon(self) -> None:
        if not self._parsing:
            self._parsing = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._parsing = False
        self._read()
        if len(self._unread) <= UNREAD_BYTES:
            self._resume()
        if self._half_closed and not (self._exchanges or self._parsing or self._closing):
            self._close()

    def _read(self) -> None:
        """Parse some of what has arrived; others come before the rest. Later requests wait while one is answered."""
        if self._unread and self._refused is None and not self._closing and len(self._exchanges) < 2:
            part = bytes(self._unread[: min(self._reader.quota, PARSED_BYTES)])
            del self._unread[: len(part)]
            try:
                self._reader.feed(part)
            except ApiError as error:
                self._refuse(error)
                return
            if self._unread and len(self._exchanges) < 2:
                self._read_soon()

    def _limit_unread(self) -> None:
        """Stop reading while much waits for the parser, or for the application."""
        if len(self._unread) > UNREAD_BYTES or (self._arriving and self._arriving.buffered > BUFFERED_BYTES):
            self._pause()

    def _scope(self, head: Head) -> Scope:
        url = httptools.parse_url(head.url)
        raw_path: bytes = url.path or b"/"
        return {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "server": self._local,
            "client": self._client,
            "scheme": "https" if self._encrypted else "http",
            "method": head.method.decode("ascii"),
            "root_path": self._config.root_path,
            "path": unquote(raw_path.decode("ascii")) if b"%" in raw_path else raw_path.decode("ascii"),
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "headers": head.fields,
            "state": self._app_state.copy(),
        }

    def _answer(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self._config.loaded_app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error after the responses to the requests before, and end the connection."""
        self._on_refused(STATUSES[error.status].refused or "malformed")
        self._unread.clear()
        self._reading.clear()
        self._refused = refusal(error, self._server.default_headers)
        if self._arriving is not None:  # its end will never come
            self._exchanges.remove(self._arriving)
            self._arriving.leave()
            begun, self._arriving = self._arriving.started, None
            if begun:
                self._transport.abort()
                return
        if not self._exchanges:
            self._send_refusal()

    def _send_refusal(self) -> None:
        assert self._refused is not None
        self._transport.write(self._refused)
        self._end(self._limits.head_bytes)

    def _end(self, linger: int) -> None:
        """End the connection after what was written. The client may send `linger` bytes more, which are dropped."""
        if not linger or self._half_closed or self._transport.is_closing():
            self._close()
            return
        self._lingering = linger
        self._unread.clear()
        self._resume()
        if not self._encrypted:  # TLS cannot end one direction
            self._transport.write_eof()
        self._reading.set(self._limits.linger_seconds)

    def _close(self) -> None:
        self._closing = True
        self._reading.clear()
        self._expect_reading()
        self._transport.close()

    def _too_slow(self) -> None:
        """A deadline for reading has passed."""
        if self._arriving is not None and self._lingering is None:
            if self._paused or self._exchanges[0] is not self._arriving:  # the server is slow, not the client
                self._reading.set(self._limits.body_seconds)
            else:
                self._refuse(HttpError(408, "the body of the request did not arrive in the time that its size allows"))
        elif self._lingering is not None or not (self._exchanges or self._reader.in_head):
            self._close()
        elif not self._exchanges:
            self._refuse(
                HttpError(408, f"the header of the request did not arrive within {self._limits.head_seconds:g} s")
            )

    def _leave(self) -> None:
        """Make a place for another connection."""
        self._on_refused("full")
        self._transport.abort()

    def _expect_reading(self) -> None:
        """Give the client time to take some of what was written."""
        self._n_taken = bytes_acknowledged(self._transport)
        self._writing.set(self._limits.unread_seconds)

    def _not_read(self) -> None:
        if bytes_acknowledged(self._transport) > self._n_taken:  # slow, but it reads
            self._expect_reading()
            return
        self._on_refused("unread")
        self._transport.abort()

    def _probe_client(self, first: bool) -> None:
        """Find out whether a client that has sent its end still listens: one that does not resets the connection.

        The interim response 100 is a probe that every client of HTTP/1.1 skips.
        """
        if self._transport.is_closing() or not self._exchanges:
            return
        if has_reset(self._transport):
            self._transport.abort()
            return
        exchange = self._exchanges[0]
        if first and not exchange.started:
            self._transport.write(CONTINUE)
        self._probe = self._loop.call_later(PROBE_SECONDS, self._probe_client, False)

    def _pause(self) -> None:
        if not self._paused and not self._half_closed:
            self._paused = True
            self._paused_at = self._loop.time()
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and not self._half_closed and not self._transport.is_closing():
            self._paused = False
            self._body_began += self._loop.time() - self._paused_at  # this time is not the client's
            self._transport.resume_reading()
            if self._arriving is not None:
                self._reading.set(self._limits.body_seconds)
