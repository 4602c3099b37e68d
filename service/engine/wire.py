"""The wire between service and engine: messages in frames over a socket pair. Both ends."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import cast

from model.machine import frames
from service.engine.messages import FromEngine, ToEngine, data_of, from_json, to_json


def frame(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message on the wire."""
    return frames.pack(message, data_of(message), to_json=to_json)


class Wire:
    """The engine's end, which blocks. Any thread may call `send`, one thread `receive`."""

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
            value, data = frames.receive(self._sock)
        except OSError:
            return None
        return cast(ToEngine, from_json(value, data))

    def close(self) -> None:
        """End both directions; a reader blocked in `receive` gets None."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the descriptor, once no thread reads any more."""
        self._sock.close()


class MessageProtocol(asyncio.Protocol):
    """The service's end: calls `take` for every message as it arrives, without waking a task.

    `ended` is done when the wire closes, and fails with what `take` raises. Nothing is taken after that: a sequence
    whose update was lost must not get the next one.
    """

    def __init__(self, take: Callable[[FromEngine], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._buffer += data
        try:
            for value, _ in frames.received(self._buffer):
                self._take(cast(FromEngine, from_json(value)))
        except Exception as error:
            self.ended.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
