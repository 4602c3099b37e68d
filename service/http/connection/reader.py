"""The requests in the bytes of a connection, by httptools. A request that breaks a limit is refused as it arrives."""

import re
from typing import TYPE_CHECKING, NamedTuple

import httptools

from service.errors.errors import ApiError, HttpError
from service.http.connection.limits import Limits

if TYPE_CHECKING:
    from service.http.connection.protocol import Connection

Fields = list[tuple[bytes, bytes]]
VERSIONS = ("1.0", "1.1")
SINGLE = (b"host", b"authorization", b"x-api-key", b"content-type", b"content-encoding")
"""Fields that a request has at most once: of two, each reader could believe another one."""
HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
"""The characters of a host and a port (RFC 3986, 3.2.2)."""


class RequestHead(NamedTuple):
    """The head of a request. Names of `fields` are in lower case. `length` is the size of the body, if it is known."""

    method: bytes
    url: bytes
    version: str
    fields: Fields
    keep_alive: bool
    length: int | None

    def value(self, name: bytes) -> bytes | None:
        """Return the first field of this name."""
        return next((value for other, value in self.fields if other == name), None)

    def violation(self) -> str | None:
        """Return why the request is not valid HTTP/1.0 or HTTP/1.1; None if it is."""
        if self.version not in VERSIONS:
            return f"HTTP/{self.version} is not supported: use HTTP/1.1"
        names = [name for name, _ in self.fields]
        for name in SINGLE:
            if names.count(name) > 1:
                return f"the header field {name.decode()} may occur once, got {names.count(name)}"
        host = self.value(b"host")
        if host is None and self.version == "1.1":
            return "a request of HTTP/1.1 needs the header field host"
        if host is not None and not HOST.fullmatch(host):
            return "the header field host must be a host name or an address, and a port"
        return None


class RequestReader:
    """Parses requests and calls their connection for each part. Fields after a body (trailers) are counted and dropped.

    An `Upgrade` field is ignored, as RFC 9110, 7.8 allows: `curl --http2` and Java's client send one. httptools stops
    after the head of such a request; it is then parsed again without the field.
    """

    def __init__(self, limits: Limits, connection: "Connection") -> None:
        self._limits = limits
        self._connection = connection
        self._parser = self._new_parser()
        self._passed = 0  # bytes since the last part of a body, or since the request began
        self._error: ApiError | None = None
        self.in_head = False
        """Whether a request has begun, and its head is not complete."""
        self.is_http2 = False
        """Whether the client has begun to speak HTTP/2."""
        self._reset()

    @property
    def quota(self) -> int:
        """Return the largest number of bytes that `feed` takes now."""
        return self._limits.head_bytes - self._passed

    def feed(self, data: bytes) -> None:
        """Parse the next bytes, at most `quota`. Raises ApiError; nothing can be read after that."""
        self._passed += len(data)
        self._parse(data)
        if self._error is not None:
            raise self._error
        if self._passed >= self._limits.head_bytes:
            what = "trailers or chunk headers" if self._in_body else "header"
            raise HttpError(431, f"the request's {what} may have at most {self._limits.head_bytes} bytes")

    # Called by httptools. An exception would lose its message there.

    def on_message_begin(self) -> None:
        self._reset()
        self.in_head = True
        self._connection.on_request()

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes:
            message = f"the URL may have at most {self._limits.url_bytes} bytes"
            self._error = self._error or HttpError(414, message)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_fields += 1
        size = len(name) + len(value) + len(b": ")
        if self._n_fields > self._limits.fields:
            message = f"a request may have at most {self._limits.fields} header fields"
            self._error = self._error or HttpError(431, message)
        elif size > self._limits.line_bytes:
            message = f"a header field may have at most {self._limits.line_bytes} bytes, got {size}"
            self._error = self._error or HttpError(431, message)
        elif not self._in_body:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._offers_upgrade() or self._error is not None:
            return
        self._passed, self._in_body, self._n_fields, self.in_head = 0, True, 0, False
        length = next((int(value) for name, value in self._fields if name == b"content-length"), None)
        chunked = any(name == b"transfer-encoding" for name, _ in self._fields)
        parser = self._parser
        head = RequestHead(
            parser.get_method(),
            self._url,
            parser.get_http_version(),
            self._fields,
            parser.should_keep_alive(),
            None if chunked else length or 0,
        )
        self._error = self._connection.on_head(head)

    def on_body(self, part: bytes) -> None:
        self._passed = 0
        if self._error is None:
            self._connection.on_part(part)

    def on_message_complete(self) -> None:
        if not self._offers_upgrade() and self._error is None:
            self._passed, self._in_body = 0, False
            self._connection.on_end()

    def _reset(self) -> None:
        self._url = b""
        self._fields: Fields = []
        self._n_fields = 0
        self._in_body = False

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Requests may follow one that asks to close; the connection decides whether they are answered.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _parse(self, data: bytes) -> None:
        while data and self._error is None:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stop:
                if not self._offers_upgrade():
                    self._error = HttpError(400, "the method CONNECT is not supported")
                    return
                data = self._head_without_upgrade() + data[stop.args[0] :]
                self._parser = self._new_parser()
            except httptools.HttpParserError as error:
                self.is_http2 = self._parser.get_method() == b"PRI"
                if self.is_http2:
                    self._error = HttpError(400, "HTTP/2 is not supported: use HTTP/1.1")
                self._error = self._error or HttpError(400, f"the request is not valid HTTP: {error}")

    def _offers_upgrade(self) -> bool:
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        start = b"%s %s HTTP/%s" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        lines = [start, *(b"%s: %s" % field for field in self._fields if field[0] != b"upgrade")]
        return b"\r\n".join([*lines, b"", b""])
