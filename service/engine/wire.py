"""Messages over a socket pair: four bytes of length, then JSON. Both ends; the child's end is blocking."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from service.engine.messages import FromEngine, ToEngine, decode, encode

HEADER = struct.Struct("!I")


def frame(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message on the wire."""
    data = encode(message)
    return HEADER.pack(len(data)) + data


def received(buffer: bytearray) -> Iterator[ToEngine | FromEngine]:
    """The messages that are whole in `buffer`, which they leave. Raises what `decode` raises."""
    while len(buffer) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        data = bytes(buffer[HEADER.size : end])
        del buffer[:end]
        yield decode(data)


class Wire:
    """The engine's end. `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Write one message. Raises OSError when the service is gone."""
        data = frame(message)
        with self._lock:
            self._sock.sendall(data)

    def receive(self) -> ToEngine | None:
        """The next message; None when the service has closed its end."""
        try:
            header = self._stream.read(HEADER.size)
            if len(header) < HEADER.size:
                return None
            (size,) = HEADER.unpack(header)
            data = self._stream.read(size)
        except (OSError, ValueError):
            return None
        return decode(data) if len(data) == size else None  # type: ignore[return-value]

    def close(self) -> None:
        """End both directions; a reader blocked in `receive` gets None."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the descriptor back, once no thread reads any more."""
        self._stream.close()
        self._sock.close()
