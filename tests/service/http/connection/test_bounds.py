"""Sizes of heads, trailers and chunk headers, and the deadlines of a connection."""

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.http.connection.limits import LIMITS
from tests.service.http.connection.raw import (
    BODY,
    LIVE,
    START,
    chunked,
    connected,
    read_all,
    read_answer,
    send_all,
    whole,
)
from tests.service.live import LONG, USER, Live, answer, begun, hurried, remaining, running
from tests.waiting import PATIENCE, eventually

FIELD = b"X-Field: %s\r\n"
CERTIFICATE = Path(__file__).parents[1] / "certificates" / "first.pem"


def head_of(size: int) -> bytes:
    """A GET request whose head has `size` bytes, in fields of at most 4 kB."""
    head = b"GET /live HTTP/1.1\r\nHost: localhost\r\n"
    while (left := size - len(head) - len(b"\r\n")) > 0:
        length = min(left, 4096)
        if 0 < left - length < len(FIELD % b"") + 1:
            length -= len(FIELD % b"") + 1
        head += FIELD % (b"a" * (length - len(FIELD % b"")))
    return head + b"\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head_of(LIMITS.head_bytes), 200),
        (head_of(LIMITS.head_bytes + 1), 431),
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + FIELD % b"" * (LIMITS.fields - 1) + b"\r\n", 200),
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + FIELD % b"" * LIMITS.fields + b"\r\n", 431),
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + FIELD % (b"a" * 8183) + b"\r\n", 200),
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + FIELD % (b"a" * 8184) + b"\r\n", 431),
        (b"GET /live?" + b"a" * (LIMITS.url_bytes - 6) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /live?" + b"a" * (LIMITS.url_bytes - 5) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_sizes_of_a_head(live: Live, data: bytes, status: int) -> None:
    with connected(live) as sock:
        sock.sendall(data)
        response = read_answer(sock)
        assert response.status == status
        if status == 200:
            sock.sendall(LIVE)
            assert read_answer(sock).status == 200
        else:
            assert response.error["code"] in ("header_fields_too_large", "uri_too_long")
            assert any(str(limit) in response.error["message"] for limit in (32768, 100, 8192))
            assert response.fields["connection"] == "close"
            assert sock.recv(1) == b""


@pytest.mark.parametrize(
    ("start", "more", "status"),
    [
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\n", b"X-Field: " + b"a" * 1000 + b"\r\n", 431),
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-Endless: ", b"a" * 1000, 431),
        (b"GET /live?", b"a" * 1000, 414),
        (b"", b"\r\n" * 500, 431),
        (START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: " + b"a" * 1000 + b"\r\n", 431),
        (START + b"Transfer-Encoding: chunked\r\n\r\n5;x=", b"a" * 1000, 431),
    ],
    ids=["fields", "value", "url", "empty lines", "trailers", "extension"],
)
def test_what_never_ends_is_cut_off(live: Live, start: bytes, more: bytes, status: int) -> None:
    """The server answers and stops reading; on its side of the connection nothing grows."""
    with connected(live) as sock:
        sock.sendall(start)
        sent = send_all(sock, more, 100_000)
        assert sent < 40 * 2**20
    with connected(live) as sock:
        sock.sendall(start)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(more * 100)
        assert read_answer(sock).status == status


def test_trailers_are_no_header_fields(live: Live) -> None:
    """A trailer cannot add a key or a length to a request that was checked already."""
    with connected(live) as sock:
        sock.sendall(chunked(trailers=b"X-Request-Id: smuggled\r\n" * 20) + LIVE)
        first = read_answer(sock)
        assert json.loads(first.body)["choices"][0]["text"] == answer("a", 5)
        assert first.fields["x-request-id"] != "smuggled"
        assert read_answer(sock).status == 200


SHORT = replace(LIMITS, head_seconds=1.0, body_seconds=1.0, unread_seconds=1.0, linger_seconds=0.1, body_rate=10**6)


@pytest.fixture(scope="module")
def short() -> Iterator[Live]:
    """A server with short deadlines."""
    with running(limits=SHORT) as live:
        yield live


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", None),
        (b"GET /live HT", 408),
        (START, 408),
        (whole()[:-1], 408),
        (START + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc", 408),
    ],
    ids=["silent", "line", "head", "body", "chunk"],
)
def test_a_client_that_stops_sending_is_cut_off(short: Live, data: bytes, status: int | None) -> None:
    with connected(short) as sock:
        sock.sendall(data)
        if status is not None:
            response = read_answer(sock)
            assert (response.status, response.error["code"]) == (status, "request_timeout")
        assert read_all(sock) == b""
        eventually(lambda: short.metric("noria_connections") == 1, "only the client of the metrics is connected")


def test_a_connection_without_a_next_request_ends() -> None:
    with running(limits=replace(LIMITS, idle_seconds=0.3)) as live, connected(live) as sock:
        sock.sendall(LIVE)
        assert read_answer(sock).status == 200
        assert read_all(sock) == b""


def drip(live: Live, data: bytes) -> bytes:
    """The end of a connection that gets a byte each 50 ms."""
    with connected(live) as sock:
        sock.settimeout(0.05)
        for byte in data:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(bytes([byte]))
            try:
                if (part := sock.recv(1000)) or part == b"":
                    return part
            except TimeoutError:
                continue
            except ConnectionResetError:
                return b""
    raise AssertionError("the server waited for everything")


def test_bytes_that_drip_do_not_extend_the_time(short: Live) -> None:
    """A head has its time from the first byte, and a body a total that its size allows, however short the pauses."""
    assert drip(short, START).startswith(b"HTTP/1.1 408")
    with connected(short) as sock:
        sock.sendall(START + b"Content-Length: 1000\r\n\r\n")
        sock.settimeout(0.1)
        for _ in range(100):
            sock.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                assert sock.recv(1000).startswith(b"HTTP/1.1 408")
                return
        raise AssertionError("the body had no limit in all")


def test_a_large_body_has_the_time_that_it_needs() -> None:
    """The same pauses, at a rate that is high enough."""
    body = BODY.ljust(20)
    with running(limits=replace(SHORT, body_seconds=0.7, body_rate=len(body) // 5)) as live, connected(live) as sock:
        sock.sendall(START + b"Content-Length: %d\r\n\r\n" % len(body))
        sock.settimeout(0.1)
        for byte in body[:-1]:
            sock.sendall(bytes([byte]))
            with pytest.raises(TimeoutError):
                sock.recv(1)
        sock.sendall(body[-1:])
        sock.settimeout(10)
        assert read_answer(sock).status == 200


def test_a_stream_that_nobody_reads_is_aborted() -> None:
    """Each event has alternatives, so that little of the answer fits into the buffers of the system."""
    with running(model="slow", limits=replace(SHORT, unread_seconds=0.5)) as live:
        body = json.dumps({**LONG, "stream": True, "logprobs": 5, "n": 100}).encode()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", int(live.url.rpartition(":")[2])))
            sock.sendall(whole(body=body))
            eventually(lambda: live.metric("noria_requests_running") > 0, "it runs")
            eventually(lambda: live.metric("noria_requests_running") == 0, "nobody reads, and it is aborted")
            assert live.metric("noria_refused_connections_total", reason="unread") == 1
        assert live.metric("noria_requests_total", outcome="abort") == 1


OF_ADDRESS, OF_SERVER = (
    ({"max_connections_per_address": 20}, "your address has 20"),
    ({"max_connections": 20}, "has 20"),
)


@pytest.mark.parametrize(("options", "words"), [OF_ADDRESS, OF_SERVER], ids=["address", "server"])
def test_beyond_the_limits_only_probes_are_answered(options: dict[str, int], words: str) -> None:
    """All connections are busy with answers, and many silent ones wait beyond the limits."""
    with running(model="slow", **options) as live:
        with contextlib.ExitStack() as stack:
            body = json.dumps({**LONG, "stream": True}).encode()
            for _ in range(20):
                stack.enter_context(connected(live)).sendall(whole(body=body))
            eventually(lambda: live.engine.stats.running == 20, "all places are taken by requests")
            for _ in range(40):
                stack.enter_context(connected(live))
            for path, status in (("/live", 200), ("/v1/models", 503), ("/ready", 200), ("/v1/models", 503)):
                with connected(live) as sock:
                    sock.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
                    response = read_answer(sock)
                    assert response.status == status
                    if status == 503:
                        assert words in response.error["message"]
                        assert response.error["code"] == "too_many_connections"
                        assert response.fields["retry-after"]
            assert live.engine.stats.running == 20
        eventually(lambda: connected_models(live) == 200, "there is place again")


@pytest.mark.parametrize("options", [OF_ADDRESS[0], OF_SERVER[0]], ids=["address", "server"])
def test_half_sent_requests_keep_nobody_out(options: dict[str, int]) -> None:
    with running(model="slow", **options) as live, contextlib.ExitStack() as stack:
        lines = stack.enter_context(begun(live, max_tokens=400))
        for n in range(60):
            stack.enter_context(connected(live)).sendall(START[:n])
        assert connected_models(live) == 200
        with hurried():
            assert remaining(lines)[-1] == "[DONE]"
        assert live.metric("noria_connections") <= 21
        assert live.metric("noria_refused_connections_total", reason="full") >= 40


def connected_models(live: Live) -> int:
    with connected(live) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return read_answer(sock).status


@pytest.mark.parametrize("certificate", [None, CERTIFICATE], ids=["plain", "TLS"])
def test_a_client_that_reads_slowly_gets_its_answer(certificate: Path | None) -> None:
    """It needs several times the deadline for all, and takes something within each."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    chat = {"messages": USER, "n": 16, "max_tokens": 240, "logprobs": True, "top_logprobs": 20}
    start = START.replace(b"/v1/completions", b"/v1/chat/completions")
    request = whole(b"Connection: close\r\n", json.dumps(chat).encode(), start)
    with running(limits=replace(SHORT, unread_seconds=0.5), ssl_certfile=certificate) as live:

        def reads() -> bool:
            """Whether no pause was longer than the deadline because the machine stood still."""
            with contextlib.ExitStack() as stack:
                sock = stack.enter_context(socket.socket())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
                sock.connect(live.address)
                sock.settimeout(PATIENCE)
                if certificate is not None:
                    sock = stack.enter_context(trusting.wrap_socket(sock))
                sock.sendall(request)
                data, longest = bytearray(sock.recv(1)), 0.0
                for n in range(1, 11):
                    paused = time.monotonic()
                    time.sleep(0.2)
                    longest = max(longest, time.monotonic() - paused)
                    while len(data) < n * 2**18 and (part := sock.recv(2**14)):
                        data += part
                data += read_all(sock)
            if longest > 0.4:
                return False
            head, _, content = bytes(data).partition(b"\r\n\r\n")
            assert b"content-length: %d" % len(content) in head.lower()
            assert len(json.loads(content)["choices"]) == 16
            assert len(content) > 3 * 2**20
            return True

        eventually(reads, "an answer that is read slowly")
