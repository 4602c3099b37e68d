"""Frames between Noria's processes: two lengths, JSON text, bytes. Standard library only."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

HEADER = struct.Struct("!II")
"""Bytes of the text, bytes of the data behind it."""
to_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def pack(value: Any, data: bytes = b"", *, to_json: Callable[[Any], str] = to_json) -> bytes:
    """Pack a JSON value and some bytes into a frame. `to_json` converts values of types that JSON does not have."""
    return head(value, len(data), to_json=to_json) + data


def head(value: Any, n_data: int, *, to_json: Callable[[Any], str] = to_json) -> bytes:
    """Return the frame of a JSON value but for the `n_data` bytes at its end."""
    text = to_json(value).encode()
    return HEADER.pack(len(text), n_data) + text


def received(buffer: bytearray) -> Iterator[tuple[Any, bytes]]:
    """Yield values and data of the complete frames in `buffer`, and remove them. Raises ValueError for no JSON."""
    while len(buffer) >= HEADER.size:
        n_text, n_data = HEADER.unpack_from(buffer)
        end = HEADER.size + n_text + n_data
        if len(buffer) < end:
            return
        body = bytes(buffer[HEADER.size : end])
        del buffer[:end]
        yield _value(body[:n_text]), body[n_text:]


def send(sock: socket.socket, value: Any, data: bytes = b"") -> None:
    """Write a frame to a blocking socket. Raises OSError when the other end is gone."""
    sock.sendall(pack(value, data))


def receive(sock: socket.socket) -> tuple[Any, bytes]:
    """Receive the next frame of a blocking socket. Raises OSError when the other end is gone."""
    n_text, n_data = HEADER.unpack(_exactly(sock, HEADER.size))
    return _value(_exactly(sock, n_text)), _exactly(sock, n_data)


class FrameSocket:
    """One end of a connection of two processes, over a blocking socket. Any thread may write, one thread reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def write(self, frame: bytes) -> None:
        """Write a frame. Raises OSError when the other end is gone."""
        with self._lock:
            self._sock.sendall(frame)

    def read(self) -> tuple[Any, bytes]:
        """Receive the next frame. Raises OSError when the other end is gone, ValueError for no JSON."""
        return receive(self._sock)

    def close(self) -> None:
        """End both directions: a thread that reads sees the end."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the descriptor, once no thread reads any more."""
        self._sock.close()


def _exactly(sock: socket.socket, n: int) -> bytes:
    """Receive the next n bytes. The system copies them once, while other threads run."""
    parts = []
    while n:
        if not (part := sock.recv(n, socket.MSG_WAITALL)):
            raise ConnectionResetError
        parts.append(part)
        n -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _value(text: bytes) -> Any:
    return json.loads(text.decode())
