"""A listener for probes only. It answers from a thread of its own, also when no descriptor is free."""

import contextlib
import http.server
import io
import logging
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

log = logging.getLogger("noria")

CONNECTION_SECONDS = 2.0
"""The time that one client may take."""
MAX_CLIENTS = 16

Answer = Callable[[str], tuple[int, bytes] | None]
"""Path -> status and JSON, or None for an unknown path. Called from any thread."""


class HealthListener(http.server.ThreadingHTTPServer):
    """Serves probes on a socket until `close`.

    It has one descriptor in reserve, to accept a client when no other is free. Each client has `CONNECTION_SECONDS` in
    all. Beyond `MAX_CLIENTS` a new one waits as long for a place, then its connection ends.
    """

    daemon_threads = True

    def __init__(self, sock: socket.socket, answer: Answer) -> None:
        super().__init__(sock.getsockname(), _Probe, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.answer = answer
        self._reserve = io.FileIO(os.devnull)
        self._slots = threading.BoundedSemaphore(MAX_CLIENTS)
        self._thread = threading.Thread(target=self.serve_forever, name="noria-health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        self._reserve.close()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:  # no descriptor is free
            self._reserve.close()
            with contextlib.suppress(OSError):
                sock, address = super().get_request()
                with sock:
                    self.finish_request(sock, address)
            self.service_actions()
            raise

    def service_actions(self) -> None:
        """Take a descriptor into reserve, if there is none. Called about twice a second."""
        if self._reserve.closed:
            with contextlib.suppress(OSError):
                self._reserve = io.FileIO(os.devnull)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(timeout=CONNECTION_SECONDS):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one client. Its connection ends at the end of its time, whatever it is doing."""
        end = threading.Timer(CONNECTION_SECONDS, _shut, [request])
        end.start()
        try:
            super().finish_request(request, client_address)
        finally:
            end.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a probe failed", exc_info=True)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Probe(http.server.BaseHTTPRequestHandler):
    """One request: GET or HEAD of a probe's path."""

    server: HealthListener
    timeout = CONNECTION_SECONDS

    def do_GET(self) -> None:
        found = self.server.answer(self.path.partition("?")[0])
        status, body = found or (HTTPStatus.NOT_FOUND, b'{"status":"not found"}')
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come often."""
