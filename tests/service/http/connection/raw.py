"""Connections as raw bytes."""

import json
import socket
from typing import Any, NamedTuple

from tests.service.live import Live
from tests.waiting import PATIENCE

BODY = json.dumps({"prompt": "a", "max_tokens": 5}).encode()
START = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def whole(extra: bytes = b"", body: bytes = BODY, start: bytes = START) -> bytes:
    """A completion request with more header lines."""
    return start + extra + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def chunked(extra: bytes = b"", trailers: bytes = b"", extension: bytes = b"") -> bytes:
    """The same with a body in one chunk."""
    framing = b"Transfer-Encoding: chunked\r\n\r\n%x%b\r\n%b\r\n0\r\n%b\r\n"
    return START + extra + framing % (len(BODY), extension, BODY, trailers)


def connected(live: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2])), timeout=PATIENCE)


class Answer(NamedTuple):
    """One response: status, header fields with lower-case names, and body."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def read_answer(sock: socket.socket) -> Answer:
    """The next response, which has a length or ends the connection."""
    with sock.makefile("rb", buffering=0) as file:  # reads nothing of the next one
        version, status, _ = file.readline().decode().split(" ", 2)
        assert version == "HTTP/1.1"
        fields = {}
        while line := file.readline().strip().decode():
            name, _, value = line.partition(": ")
            fields[name.lower()] = value
        length = fields.get("content-length")
        if length is None and status != "100":
            return Answer(int(status), fields, file.read())
        body = b""
        while len(body) < int(length or 0):
            part = file.read(int(length or 0) - len(body))
            assert part, "the answer is cut"
            body += part
        return Answer(int(status), fields, body)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server ends the connection; a reset is an end, too."""
    data = b""
    try:
        while part := sock.recv(2**16):
            data += part
    except ConnectionResetError:
        pass
    return data


def send_all(sock: socket.socket, data: bytes, n: int) -> int:
    """Send `data` n times, or until the server takes no more; returns the number of bytes sent."""
    sent = 0
    try:
        for _ in range(n):
            sock.sendall(data)
            sent += len(data)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return sent
