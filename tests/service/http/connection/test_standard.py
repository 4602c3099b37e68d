"""HTTP as its standards say: versions, fields, framing, and connections that one side has ended."""

import json
import socket
import struct
import time

import httpx
import pytest

from tests.service.http.connection.raw import (
    BODY,
    LIVE,
    START,
    chunked,
    connected,
    read_all,
    read_answer,
    whole,
)
from tests.service.live import LONG, Live, answer, begun, idle, remaining, running
from tests.waiting import eventually

OLD = START.replace(b"HTTP/1.1\r\nHost: localhost\r\n", b"HTTP/1.0\r\n")


def streamed(max_tokens: int = 5) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": max_tokens, "stream": True}).encode()


def text_of(events: bytes) -> str:
    chunks = [line.removeprefix(b"data: ") for line in events.split(b"\n\n") if line]
    assert chunks.pop() == b"[DONE]"
    return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


@pytest.mark.parametrize("size", [1, 1000])
def test_http_2_unasked_is_refused_in_frames_of_http_2(live: Live, size: int) -> None:
    """SETTINGS, HEADERS and DATA of the first stream, and GOAWAY with HTTP_1_1_REQUIRED (RFC 9113)."""
    with connected(live) as sock:
        for start in range(0, len(PREFACE), size):
            try:
                sock.sendall(PREFACE[start : start + size])
            except ConnectionError:
                break
        data = read_all(sock)
    frames = []
    while data:
        end = 9 + int.from_bytes(data[:3])
        frames.append((data[3], data[4], int.from_bytes(data[5:9]), data[9:end]))
        data = data[end:]
    assert [frame[:3] for frame in frames] == [(4, 0, 0), (1, 4, 1), (0, 1, 1), (7, 0, 0)]
    assert frames[1][3] == b"\x08\x03400\x0f\x10\x10application/json"
    assert json.loads(frames[2][3])["error"]["message"] == "HTTP/2 is not supported: use HTTP/1.1"
    assert frames[3][3] == bytes((0, 0, 0, 1, 0, 0, 0, 13)) + b"HTTP/2 is not supported: use HTTP/1.1"


def test_http_1_0_gets_no_chunks(live: Live) -> None:
    """The end of the connection is the end of the answer, which is streamed all the same."""
    for body in (BODY, streamed()):
        with connected(live) as sock:
            sock.sendall(whole(body=body, start=OLD))
            response = read_answer(sock)
            assert response.status == 200
            assert "transfer-encoding" not in response.fields
            assert response.fields["connection"] == "close"
            assert sock.recv(1) == b""
            text = text_of(response.body) if body != BODY else json.loads(response.body)["choices"][0]["text"]
            assert text == answer("a", 5)


def test_http_1_0_streams_as_tokens_come() -> None:
    with running(model="slow") as live, connected(live) as sock:
        body = json.dumps({**LONG, "stream": True}).encode()
        sock.sendall(whole(body=body, start=OLD))
        with sock.makefile("rb") as file:
            while not file.readline().startswith(b"data: {"):
                pass
            assert live.metric("noria_requests_running") == 1


HEAD = b"GET /live HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HEAD + b"\r\n", "host"),
        (HEAD + b"Host: localhost\r\nHost: localhost\r\n\r\n", "host"),
        (HEAD + b"Host: x y\r\n\r\n", "host"),
        (HEAD + b"Host: x/y@z\r\n\r\n", "host"),
        (b"GET /live HTTP/1.0\r\nHost: localhost\r\nHost: y\r\n\r\n", "host"),
        (b"GET /live HTTP/2.0\r\nHost: localhost\r\n\r\n", ""),
        (b"GET /live HTTP/0.9\r\nHost: localhost\r\n\r\n", ""),
        (b"GET /live HTTP/1.7\r\nHost: localhost\r\n\r\n", ""),
        (HEAD + b"Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", "authorization"),
        (HEAD + b"Host: localhost\r\nX-Api-Key: a\r\nX-Api-Key: b\r\n\r\n", "x-api-key"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", "CONNECT"),
        (b"\x16\x03\x01\x02\x00", ""),
        (whole(b"Transfer-Encoding: chunked\r\n"), ""),
        (whole(b"Content-Length: 3\r\n"), ""),
        (START + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", ""),
        (START + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", ""),
        (START + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", ""),
        (START + b"Content-Length: -1\r\n\r\n", ""),
        (START + b"Content-Length : 5\r\n\r\n", ""),
        (START + b"X:\x00\r\n\r\n", ""),
    ],
)
def test_what_is_no_http_is_refused(live: Live, data: bytes, words: str) -> None:
    """Nothing after it is read as a request, and the answer has the JSON of every other error."""
    with connected(live) as sock:
        sock.sendall(data + LIVE)
        response = read_answer(sock)
        assert response.status == 400
        assert response.error["code"] == "invalid_http"
        assert words in response.error["message"]
        assert response.fields["content-type"] == "application/json"
        assert read_all(sock) == b""


def test_an_error_waits_for_the_answers_before_it(live: Live) -> None:
    with connected(live) as sock:
        sock.sendall(whole() + LIVE + b"nonsense\r\n\r\n" + LIVE)
        assert [read_answer(sock).status for _ in range(3)] == [200, 200, 400]
        assert read_all(sock) == b""


def test_requests_in_a_row_are_answered_in_order(live: Live) -> None:
    """Also with a large body between them, which is refused, and with more of them than are read at once."""
    with connected(live) as sock:
        sock.sendall((whole() + chunked() + LIVE) * 100)
        statuses = [read_answer(sock) for _ in range(300)]
        assert {response.status for response in statuses} == {200}
        assert [response.body == b'{"status":"live"}' for response in statuses] == [False, False, True] * 100


def test_expect_continue(live: Live) -> None:
    with connected(live) as sock:
        sock.sendall(START + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        assert read_answer(sock).status == 200
        sock.sendall(START.replace(b"/v1", b"/x") + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        response = read_answer(sock)  # no interim response: the body is not wanted
        assert (response.status, response.fields["connection"]) == (404, "close")


@pytest.mark.parametrize(("start", "stream"), [(START, True), (OLD, False)], ids=["1.1", "1.0"])
def test_a_client_that_ends_its_input_is_gone(start: bytes, stream: bool) -> None:
    with running(model="slow") as live, connected(live) as sock:
        sock.sendall(whole(body=json.dumps({**LONG, "stream": stream}).encode(), start=start))
        eventually(lambda: live.metric("noria_requests_running") == 1, "it runs")
        sock.shutdown(socket.SHUT_WR)
        eventually(idle(live), "it is forgotten")
        assert b"[DONE]" not in read_all(sock)
        assert live.metric("noria_requests_total", outcome="abort") == 1


def test_an_answer_before_the_end_of_a_body_reaches_its_client(live: Live) -> None:
    """The server closes after it, but not while the client still sends: that would reset the answer."""
    with connected(live) as sock:
        sock.sendall(START.replace(b"application/json", b"text/plain") + b"Content-Length: 3000000\r\n\r\n")
        time.sleep(0.05)
        for _ in range(30):
            sock.sendall(b" " * 100_000)
        response = read_answer(sock)
        assert (response.status, response.fields["connection"]) == (415, "close")
        assert sock.recv(1) == b""


def test_head_requests_have_no_body(live: Live) -> None:
    with connected(live) as sock:
        sock.sendall(b"HEAD /live HTTP/1.1\r\nHost: localhost\r\n\r\n" + LIVE)
        head, _, rest = read_two(sock)
        assert b"content-length: 17" in head
        assert rest.endswith(b'{"status":"live"}')


def read_two(sock: socket.socket) -> tuple[bytes, bytes, bytes]:
    data = b""
    while not data.endswith(b'{"status":"live"}'):
        data += sock.recv(1000)
    return data.partition(b"\r\n\r\n")


def test_a_reset_while_an_answer_waits_to_be_read_leaves_nothing(live: Live) -> None:
    with connected(live) as sock:
        sock.sendall(whole() * 50)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(idle(live), "idle")
    eventually(lambda: live.metric("noria_connections") == 1, "closed")


def test_the_server_ends_idle_connections_and_finishes_an_answer() -> None:
    with running(model="slow") as live, connected(live) as silent, begun(live, max_tokens=20) as lines:
        live.server.should_exit = True
        assert read_all(silent) == b""
        assert remaining(lines)[-1] == "[DONE]"
    with pytest.raises(httpx.ConnectError):
        httpx.get(live.url + "/live")
