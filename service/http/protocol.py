"""HTTP/1.1 as uvicorn reads it, and requests that offer to go on in another protocol."""

import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """An `Upgrade` header is ignored, as HTTP allows (RFC 9110, 7.8): `curl --http2` and Java's client send one.

    httptools stops at the end of a head that has it and tells of no body. Such a head is read again without it.
    """

    _stopped: int | None = None

    def on_headers_complete(self) -> None:
        if not self._offers():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offers():
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._stopped is not None:
            rest, self._stopped = data[self._stopped :], None
            head = self._head()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
            self.data_received(head + rest)

    def _offers(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Called by uvicorn where httptools has stopped; the exception holds the offset into the data."""
        stop = sys.exception()
        if stop is not None and self._offers():
            self._stopped = stop.args[0]

    def _head(self) -> bytes:
        start = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [start, *(b"%s: %s" % header for header in self.headers if header[0] != b"upgrade")]
        return b"\r\n".join([*lines, b"", b""])
