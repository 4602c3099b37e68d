"""A link to one of several servers, which a test cuts or turns to another one, as a proxy does that watches them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Link:
    """It sends each new connection to `port`. A cut connection carries nothing any more, and nobody learns of that."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._cut = threading.Event()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def turn(self, port: int) -> None:
        """Send what comes from now on to another server."""
        self.port = port

    def cut(self) -> None:
        """Carry nothing any more in the connections that there are."""
        cut, self._cut = self._cut, threading.Event()
        cut.set()

    def close(self) -> None:
        for connection in (self._listening, *self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.port), timeout=1)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._open += (client, server)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_carry, args=(one, other, self._cut), daemon=True).start()


def _carry(one: socket.socket, other: socket.socket, cut: threading.Event) -> None:
    with suppress(OSError):
        while data := one.recv(2**16):
            if cut.is_set():
                return
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@contextmanager
def linked(port: int) -> Iterator[Link]:
    link = Link(port)
    try:
        yield link
    finally:
        link.close()
