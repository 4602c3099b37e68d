"""Clients that leave at a bad moment, and clients that read slowly: nothing is lost, and nothing stays behind."""

import gc
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from service.api.openai.chat import ChatBody
from service.http.connection.exchange import Exchange
from service.state.tables import Tables
from tests.service.api.background import LONG, PATH
from tests.service.live import USER, Live, idle, running
from tests.waiting import eventually

CHAT = "/v1/chat/completions"
SLOW = 0.3


@contextmanager
def sent(live: Live, method: str, path: str, body: dict[str, Any] | None = None) -> Iterator[socket.socket]:
    """A connection on which a request was sent. It is closed at the end, whatever came back."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(live.address) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        yield client


def slowly(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the store take its time for one of its methods."""
    method = getattr(Tables, name)

    def late(tables: Tables, *arguments: Any, **options: Any) -> Any:
        time.sleep(SLOW)
        return method(tables, *arguments, **options)

    monkeypatch.setattr(Tables, name, late)


def test_a_response_whose_client_leaves_while_it_is_stored_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(model="slow") as live:
        slowly(monkeypatch, "put")
        with sent(live, "POST", PATH, LONG):
            time.sleep(SLOW / 2)
        time.sleep(SLOW)
        eventually(idle(live), "nothing runs")
        eventually(lambda: live.state.store.use.n_stored == 0, "nothing is stored that nobody can find")


def test_a_delete_counts_although_its_client_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(model="slow") as live:
        id = live.post(PATH, LONG | {"max_output_tokens": 3000}).json()["id"]
        slowly(monkeypatch, "delete")
        with sent(live, "DELETE", f"{PATH}/{id}"):
            time.sleep(SLOW / 2)
        eventually(idle(live), "the response has ended")
        assert live.http.get(f"{PATH}/{id}").status_code == 404


def test_a_refused_request_does_not_hide_the_stream_of_its_id() -> None:
    with running(model="slow") as live:
        headers = {"x-noria-resume": "1", "x-request-id": "twice"}
        body = {"messages": USER, "max_tokens": 400, "stream": True}
        with live.http.stream("POST", CHAT, json=body, headers=headers) as response:
            next(response.iter_lines())
        assert live.post(CHAT, body | {"max_tokens": 10**6}, headers=headers).status_code == 400
        assert live.metric("noria_http_requests_total", route=CHAT, method="POST", status="400") == 1
        with live.http.stream("POST", CHAT, json=body, headers={"last-event-id": "twice:"}) as response:
            assert response.status_code == 200


def test_a_client_that_reads_slowly_holds_nothing_of_the_model() -> None:
    body = {"prompt": ["y" * 400] * 60, "max_tokens": 1, "echo": True, "logprobs": 5}
    with running() as live, sent(live, "POST", "/v1/completions", body) as client:
        client.recv(60)
        eventually(lambda: live.model("fake").admission.in_flight == 0, "the model may be unloaded")
        assert live.state.requests.find(None, "") == []
        assert not live.model("fake").busy


def test_a_stream_does_not_hold_the_body_of_its_request() -> None:
    with running(model="slow") as live:
        body = {"messages": USER, "max_tokens": 400, "stream": True}
        for headers in ({}, {"x-noria-resume": "1"}):
            with live.http.stream("POST", CHAT, json=body, headers=headers) as response:
                next(response.iter_lines())
                gc.collect()
                assert not [item for item in gc.get_objects() if type(item) is ChatBody]


def test_a_server_that_raises_when_a_client_leaves_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Serve raises an error of its own where ASGI sends `http.disconnect`."""
    receive = Exchange.receive

    async def raising(exchange: Exchange) -> Any:
        message = await receive(exchange)
        if message["type"] == "http.disconnect":
            raise RuntimeError("cancelled")
        return message

    monkeypatch.setattr(Exchange, "receive", raising)
    with running(model="slow") as live:
        body = {"messages": USER, "max_tokens": 4000, "stream": True}
        with live.http.stream("POST", CHAT, json=body) as response:
            next(response.iter_lines())
        eventually(idle(live), "nothing runs")
        assert live.metric("noria_requests_total", outcome="abort") == 1
