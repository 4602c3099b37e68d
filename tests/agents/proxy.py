"""A proxy between a client and the server: it records what both say, and may change a request on its way.

It needs the standard library only, since it runs in each client's own environment.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 300.0
"""Seconds that an answer may take: far more than it does, also on a busy machine."""
HIDDEN = {"authorization", "x-api-key", "cookie", "api-key"}
HOP = {"host", "connection", "proxy-connection", "keep-alive", "content-length", "transfer-encoding", "accept-encoding"}
PIECE = 1 << 16

Body = dict[str, Any]
Edit = Callable[[str, Body], Body]
"""What makes the request that the server gets from the path and body that the client sent."""


def unchanged(path: str, body: Body) -> Body:
    return body


@dataclass
class Exchange:
    """A request as the client sent it, as the server got it, and the server's answer."""

    method: str
    path: str
    headers: dict[str, str]
    sent: Any = None
    passed_on: Any = None
    status: int = 0
    answer: str = ""

    @property
    def error(self) -> str:
        """The server's words if it refused the request."""
        return f"{self.method} {self.path}: {self.status} {self.answer}" if self.status >= 400 else ""


@dataclass
class Record:
    """What a proxy has seen, and how it changes requests."""

    server: str
    url: str = ""
    """The proxy's address."""
    edit: Edit = unchanged
    exchanges: list[Exchange] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Hosts other than the server that the client wanted to reach."""

    def posts(self, path: str) -> list[Exchange]:
        """The requests for an endpoint."""
        return [each for each in self.exchanges if each.method == "POST" and urlsplit(each.path).path == path]

    @property
    def errors(self) -> list[str]:
        return [each.error for each in self.exchanges if each.error]


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    record: Record

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the exchanges say it."""

    def do_CONNECT(self) -> None:
        """Refuse a tunnel: nothing but the server may be reached."""
        self.record.strangers.append(self.path)
        self.close_connection = True
        self.send_error(403)

    def forward(self) -> None:
        """Pass the request on and the answer back, piece by piece as it comes."""
        if not self.path.startswith("/"):
            return self.do_CONNECT()
        sent = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        shown = {name: value for name, value in headers.items() if name not in HOP | HIDDEN}
        exchange = Exchange(self.command, self.path, shown, _parsed(sent))
        if isinstance(exchange.sent, dict):
            exchange.passed_on = self.record.edit(urlsplit(self.path).path, json.loads(sent))
            if exchange.passed_on != exchange.sent:
                sent = json.dumps(exchange.passed_on).encode()
        self.record.exchanges.append(exchange)
        connection = HTTPConnection(urlsplit(self.record.server).netloc, timeout=PATIENCE)
        try:
            passed = {name: value for name, value in headers.items() if name not in HOP}
            connection.request(self.command, self.path, sent or None, passed)
            self._return(connection.getresponse(), exchange)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has left
        finally:
            connection.close()
        return None

    do_GET = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _return(self, response: HTTPResponse, exchange: Exchange) -> None:
        exchange.status = response.status
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        length = response.getheader("Content-Length")
        self.send_header(*(("Content-Length", length) if length else ("Transfer-Encoding", "chunked")))
        self.end_headers()
        answer = bytearray()
        while piece := response.read1(PIECE):
            answer += piece
            exchange.answer = answer.decode(errors="replace")
            self.wfile.write(piece if length else b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if not length:
            self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing where a client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace") or None


@contextmanager
def recording(server: str) -> Iterator[Record]:
    """A proxy before a server, until the block ends."""
    record = Record(server)
    handler = type("RecordingHandler", (Handler,), {"record": record})
    with Server(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        record.url = f"http://127.0.0.1:{proxy.server_port}"
        yield record
        proxy.shutdown()
