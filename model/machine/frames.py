"""Frames between Noria's processes: two lengths, JSON text, bytes. Standard library only."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

HEADER = struct.Struct("!II")
"""Bytes of the text, bytes of the data behind it."""
to_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def pack(value: Any, data: bytes = b"", *, to_json: Callable[[Any], str] = to_json) -> bytes:
    """The frame of a JSON value and some bytes. `to_json` converts values of types that JSON does not have."""
    text = to_json(value).encode()
    return b"".join((HEADER.pack(len(text), len(data)), text, data))


def received(buffer: bytearray) -> Iterator[tuple[Any, bytes]]:
    """Values and data of the complete frames in `buffer`, which are removed from it. Raises ValueError for no JSON."""
    while len(buffer) >= HEADER.size:
        n_text, n_data = HEADER.unpack_from(buffer)
        end = HEADER.size + n_text + n_data
        if len(buffer) < end:
            return
        body = bytes(buffer[HEADER.size : end])
        del buffer[:end]
        yield _unpack(body, n_text)


def send(sock: socket.socket, value: Any, data: bytes = b"") -> None:
    """Write a frame to a blocking socket. Raises OSError when the other end is gone."""
    sock.sendall(pack(value, data))


def receive(sock: socket.socket) -> tuple[Any, bytes]:
    """The next frame of a blocking socket. Raises OSError when the other end is gone."""
    n_text, n_data = HEADER.unpack(_exactly(sock, HEADER.size))
    return _unpack(_exactly(sock, n_text + n_data), n_text)


def _exactly(sock: socket.socket, n: int) -> bytes:
    data = bytearray(n)
    view = memoryview(data)
    while view:
        n_read = sock.recv_into(view)
        if not n_read:
            raise ConnectionResetError
        view = view[n_read:]
    return bytes(data)


def _unpack(body: bytes, n_text: int) -> tuple[Any, bytes]:
    return json.loads(body[:n_text].decode()), body[n_text:]
