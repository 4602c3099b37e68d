"""The wire between service and engine: messages in frames over a socket pair. Both ends."""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

from model.machine import frames
from service.engine.messages import FromEngine, ToEngine, data_of, from_json, to_json

PIECE = 2**18
"""Bytes of a message that the event loop writes before it serves others."""


def frame(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message on the wire."""
    return b"".join(pieces(message))


def pieces(message: ToEngine | FromEngine) -> Iterator[bytes | memoryview]:
    """The bytes of one message, its data in pieces that are not copied."""
    data = memoryview(data_of(message))
    yield frames.head(message, len(data), to_json=to_json)
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


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

    It writes a long message piece by piece, as fast as the engine reads it. `ended` is done when the wire closes, and
    fails with what `take` raises. Nothing is taken after that: a sequence whose update was lost must not get the next
    one.
    """

    def __init__(self, take: Callable[[FromEngine], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._outgoing: deque[bytes | memoryview] = deque()
        self._paused = False

    def send(self, message: ToEngine) -> None:
        """Write a message after those before it. What is written to an engine that has ended is lost."""
        self._outgoing += pieces(message)
        self._write()

    def _write(self) -> None:
        while self._outgoing and not self._paused and self._transport is not None:
            self._transport.write(piece := self._outgoing.popleft())
            if len(piece) == PIECE:
                asyncio.get_running_loop().call_soon(self._write)
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write()

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
        self._transport = None
        self._outgoing.clear()
        if not self.ended.done():
            self.ended.set_result(None)
