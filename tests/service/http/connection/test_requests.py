"""Requests as bytes: everything that clients may do on a connection."""

import json
import socket
import struct
from typing import Any

import pytest

from tests.service.http.connection.raw import START, chunked, connected, read_answer, whole
from tests.service.live import Live, answer, running
from tests.waiting import eventually

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"


def received(sock: socket.socket) -> tuple[int, Any]:
    """Status and JSON of one answer; it has a length."""
    answer = read_answer(sock)
    return answer.status, json.loads(answer.body)


def in_pieces(sock: socket.socket, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        sock.sendall(data[start : start + size])


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("offer", [whole(OFFER), chunked(OFFER)], ids=["length", "chunks"])
def test_an_offer_to_speak_http2_is_ignored(live: Live, size: int, offer: bytes) -> None:
    """The offer is ignored for every division of the bytes, and for every later request on the connection."""
    with connected(live) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in (offer, whole(), offer):
            in_pieces(sock, data, size)
            status, body = received(sock)
            assert status == 200, body
            assert body["choices"][0]["text"] == answer("a", 5)


def test_other_offers(live: Live) -> None:
    with connected(live) as sock:
        sock.sendall(whole(b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"{"))
        assert received(sock)[1]["error"]["code"] == "invalid_json"


def idle(live: Live) -> bool:
    """Whether no request runs or waits, and no page is held."""
    pages = live.metric("noria_kv_pages", window="full", state="held")
    return pages == live.metric("noria_requests_running") == live.metric("noria_requests_waiting") == 0


def test_a_stream_cut_at_any_byte_leaves_nothing_behind() -> None:
    """The client closes or resets after k bytes: in the head, in and between frames, at the end of a short stream."""
    with running(model="slow") as live:
        with connected(live) as sock, sock.makefile("rb") as file:
            sock.sendall(stream(4))
            answered = file.read()
        assert answered.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        start, end = answered.index(b"data: "), len(answered)
        second = answered.index(b"data: ", start + 1)
        for cut in (0, start // 2, start, second - 1, second + 1):
            for reset in (False, True):
                read_and_leave(live, stream(200), cut, reset=reset)
                eventually(lambda: idle(live), f"idle after {cut} bytes")
        assert live.metric("noria_requests_total", outcome="abort") == 10
        for cut in (end // 2, end - 20, end - 1):
            read_and_leave(live, stream(4), cut, reset=True)
            eventually(lambda: idle(live), f"idle after {end - cut} bytes less than all")
        assert live.complete(prompt="a", max_tokens=5)["choices"][0]["text"] == answer("a", 5)


def stream(max_tokens: int) -> bytes:
    body = json.dumps({"prompt": "cut", "max_tokens": max_tokens, "stream": True}).encode()
    return whole(b"Connection: close\r\n", body)


@pytest.mark.parametrize("cut", [0, 1, len(START) // 2, len(START), len(whole()) - 1, len(whole())])
def test_a_request_cut_at_any_byte_leaves_nothing_behind(live: Live, cut: int) -> None:
    for offer in (b"", OFFER):
        with connected(live) as sock:
            sock.sendall(whole(offer)[:cut])
    eventually(lambda: idle(live), "idle")
    assert live.complete(prompt="a", max_tokens=5)["choices"][0]["text"] == answer("a", 5)


def read_and_leave(live: Live, request: bytes, cut: int, *, reset: bool) -> None:
    """Read `cut` bytes of an answer that has begun. With `reset` the connection ends as when a machine dies."""
    with connected(live) as sock:
        sock.sendall(request)
        sock.recv(1, socket.MSG_PEEK)
        while cut and (part := sock.recv(cut)):
            cut -= len(part)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
