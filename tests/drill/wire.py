"""Raw sockets for attacks: bytes as no client library sends them, from an address of the attacker's own."""

import contextlib
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

import httpx

ATTACKER = "127.0.0.2"
"""Attacks come from here, the canary and the probe from 127.0.0.1: limits for one address must not touch another."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: all bytes, and whether the server closed the connection."""

    data: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        """The status of each response."""
        return [int(number) for number in re.findall(rb"HTTP/1\.[01] (\d{3}) ", self.data)]

    @property
    def status(self) -> int:
        """Of the first response; 0 if there is none."""
        return next(iter(self.statuses), 0)

    def __str__(self) -> str:
        return f"{self.status or 'no answer'}, {'closed' if self.closed else 'left open'}"


def connect(port: int, *, seconds: float = 20.0, source: str = ATTACKER) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), seconds, (source, 0))


def listen(sock: socket.socket, seconds: float) -> Reply:
    """Everything that arrives until the server closes or `seconds` have passed."""
    parts: list[bytes] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            part = sock.recv(2**16)
        except TimeoutError:
            break
        except OSError:
            return Reply(b"".join(parts), True)
        if not part:
            return Reply(b"".join(parts), True)
        parts.append(part)
    return Reply(b"".join(parts), False)


def talk(port: int, data: bytes, *, seconds: float = 2.0) -> Reply:
    """Send bytes, then listen."""
    with connect(port) as sock:
        with contextlib.suppress(OSError):  # the server may close before it has read everything
            sock.sendall(data)
        return listen(sock, seconds)


def pour(port: int, head: bytes, chunk: bytes, n_bytes: int, *, seconds: float = 30.0) -> tuple[int, Reply]:
    """Send a chunk again and again until the server closes, or `n_bytes` are sent; returns what it accepted."""
    with connect(port, seconds=seconds) as sock:
        sent, deadline = 0, time.monotonic() + seconds
        try:
            sock.sendall(head)
            while sent < n_bytes and time.monotonic() < deadline:
                sock.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
        return sent, listen(sock, 2.0)


def request(body: bytes, path: str = "/v1/completions", *headers: str) -> bytes:
    """A POST of JSON as it stands on the wire."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def fetch(method: str, url: str, **options: Any) -> httpx.Response:
    """The response to one request, on a connection of its own.

    Nothing is encrypted here. Reading the system's certificates would take more processor time than the request.
    """
    with httpx.Client(verify=False) as client:
        return client.request(method, url, **options)
