"""Messages over a socket pair. Both ends; the engine's end is blocking."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from model.machine import frames
from service.engine.messages import FromEngine, ToEngine, from_json, to_json


def frame(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message on the wire."""
    return frames.pack(message, to_json=to_json)


def received(buffer: bytearray) -> Iterator[ToEngine | FromEngine]:
    """The messages that are whole in `buffer`, which they leave. Raises what `from_json` raises."""
    for value, _ in frames.received(buffer):
        yield from_json(value)


class Wire:
    """The engine's end. `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Write one message. Raises OSError when the service is gone."""
        data = frame(message)
        with self._lock:
            self._sock.sendall(data)

    def receive(self) -> ToEngine | None:
        """The next message; None when the service has closed its end."""
        try:
            value, _ = frames.receive(self._sock)
        except OSError:
            return None
        return from_json(value)  # type: ignore[return-value]

    def close(self) -> None:
        """End both directions; a reader blocked in `receive` gets None."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the descriptor back, once no thread reads any more."""
        self._sock.close()
