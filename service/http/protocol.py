"""uvicorn's HTTP/1.1, for requests that offer to change the protocol too."""

import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which ignores an `Upgrade` header, as RFC 9110, 7.8 allows.

    `curl --http2` and Java's client send one. httptools stops after the head of such a request and reports no body.
    This class then parses the head again, without the header.
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
            unread, self._stopped = data[self._stopped :], None
            head = self._head()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
            self.data_received(head + unread)

    def _offers(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn calls this when httptools has stopped. The exception holds the offset into the data."""
        stop = sys.exception()
        if stop is not None and self._offers():
            self._stopped = stop.args[0]

    def _head(self) -> bytes:
        start = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [start, *(b"%s: %s" % header for header in self.headers if header[0] != b"upgrade")]
        return b"\r\n".join([*lines, b"", b""])
