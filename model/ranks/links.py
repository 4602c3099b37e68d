"""One connection between rank 0 and another rank: frames of a kind, a JSON body and bytes, in both directions.

From rank 0:  welcome, refused, agreed, plan, prepare, goodbye
To rank 0:    hello, identity, offer, beat, output, reply, log, failed
"""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from model.machine import frames, records

BEAT_SECONDS = 0.5
KEEPALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""A host that is gone, or cannot be reached, closes the connection after about 10 s. The last is in milliseconds."""


def packed(kind: str, body: Any = None, data: bytes = b"") -> bytes:
    """Pack one message into a frame."""
    return frames.pack([kind, body], data, to_json=records.to_json)


class RankLink(frames.FrameSocket):
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # Linux has them all
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, kind: str, body: Any = None, data: bytes = b"") -> None:
        """Write a message. Raises OSError when the other end is gone."""
        self.write(packed(kind, body, data))

    def receive(self, seconds: float | None = None) -> tuple[str, Any, bytes]:
        """Receive the next message; no other thread may send while it waits for `seconds` only.

        Raises OSError when the other end is gone or sends nothing, ValueError for what is no message.
        """
        self._sock.settimeout(seconds)
        (kind, body), data = self.read()
        return kind, body, data

    def received(self) -> Iterator[tuple[str, Any, bytes]]:
        """Yield all messages until the other end is gone."""
        with contextlib.suppress(OSError, ValueError):
            while True:
                yield self.receive()
