"""Noria behind real reverse proxies, with the configurations of `deploy/`."""

import json
import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from service.logs import JsonFormatter
from service.settings import Settings
from tests.deploy.proxies import CLIENT, DEPLOY, FIRST_OF_TWO, REPLICAS, proxied
from tests.service.live import LONG, Live, busy, hurried, idle, running, sent
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.tools

FEW_BYTES = 1024
"""A proxy that buffers sends the events in parts of 4 KiB or more; one event has less than 300 bytes."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Live, Live]]:
    with running(model="slow") as first, running(model="slow") as second:
        yield first, second


@pytest.fixture(params=(*FIRST_OF_TWO, *REPLICAS))
def proxy(request: pytest.FixtureRequest, servers: tuple[Live, Live], tmp_path: Path) -> Iterator[httpx.Client]:
    with proxied(request.param, tmp_path, addresses(*servers)) as http:
        yield http


def addresses(*servers: Live) -> list[str]:
    return [live.url.removeprefix("http://") for live in servers]


def test_a_proxy_passes_streams_bodies_and_addresses(
    proxy: httpx.Client, servers: tuple[Live, Live], caplog: pytest.LogCaptureFixture
) -> None:
    def flows() -> bool:
        with proxy.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            assert response.status_code == 200
            chunks = response.iter_raw()
            next(chunks)  # it came with the head, which no proxy holds back
            return len(next(chunks)) < FEW_BYTES

    eventually(flows, "a stream whose second event comes alone")
    eventually(lambda: all(idle(live)() for live in servers), "the client of the stream is gone")
    for _ in range(4):  # HAProxy with `abortonclose` in the wrong section forgets some of them
        with sent((proxy.base_url.host, proxy.base_url.port or 80)):
            eventually(lambda: any(busy(live)() for live in servers), "a server has the request")
        eventually(lambda: all(idle(live)() for live in servers), "the client that waits for a whole answer is gone")
    caplog.set_level(logging.INFO, logger="noria.access")
    huge = {"prompt": "a" * (Settings().max_body_bytes - 100)}
    refused = proxy.post("/v1/completions", json=huge)  # more tokens than the context: its whole body has come
    assert (refused.status_code, refused.json()["error"]["code"]) != (413, None)
    assert refused.status_code == 400
    large = proxy.post("/v1/completions", json={"prompt": "a" * (Settings().max_body_bytes + 1)})
    assert large.json()["error"]["code"] == "request_too_large"
    proxy.get("/version", headers={"x-forwarded-for": "192.0.2.7"})
    lines = [json.loads(JsonFormatter().format(line)) for line in caplog.records if line.name == "noria.access"]
    assert {line["client"] for line in lines} == {CLIENT}, "what a client claims itself does not count"


@pytest.mark.parametrize("configuration", [*FIRST_OF_TWO, *REPLICAS])
def test_a_name_passes_if_the_flag_names_it(configuration: str, tmp_path: Path) -> None:
    """Each proxy passes on the Host that its client sends."""
    named: dict[str, Any] = {"allowed_hosts": ("noria.example",)}
    with (
        running(**named) as first,
        running(**named) as second,
        proxied(configuration, tmp_path, addresses(first, second)) as http,
    ):
        port = http.base_url.port
        assert http.get("/v1/models", headers={"host": f"noria.example:{port}"}).status_code == 200
        other = http.get("/v1/models", headers={"host": f"other.example:{port}"})
        assert (other.status_code, other.json()["error"]["code"]) == (403, "host_not_allowed")
        page = {"host": f"noria.example:{port}", "origin": f"http://noria.example:{port}"}
        assert http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}, headers=page).status_code == 200


def test_heads_that_are_too_large_get_the_servers_own_refusal(proxy: httpx.Client) -> None:
    """Beyond 8 KiB for a field or the URL; beyond its own limit a proxy says it in the same form."""
    field = proxy.get("/v1/models", headers={"x-long": "a" * 9000})
    url = proxy.get("/v1/models", params={"long": "a" * 9000})
    assert [answer.status_code for answer in (field, url)] == [431, 414]
    assert [fault(answer)["code"] for answer in (field, url)] == ["header_fields_too_large", "uri_too_long"]


@pytest.mark.parametrize("path", ["nginx/noria.conf", "nginx/replicas.conf", "haproxy/haproxy.cfg"])
def test_a_proxys_own_errors_have_the_form_of_the_servers(path: str, tmp_path: Path) -> None:
    with ExitStack() as proxies:
        with running() as first, running() as second:
            http = proxies.enter_context(proxied(path, tmp_path, addresses(first, second)))
            if path.startswith("nginx"):  # HAProxy's text for a head beyond its buffer is fixed
                head = http.get("/v1/models", headers={f"x-{n}": "a" * 30_000 for n in range(8)})
                url = http.get("/v1/models", params={"long": "a" * 40_000})
                large = http.post("/v1/completions", content=b"a" * (17 * 2**20))
                assert [answer.status_code for answer in (head, url, large)] == [431, 414, 413]
                assert all(fault(answer)["type"] == "invalid_request_error" for answer in (head, url, large))
        gone = http.get("/v1/models")
        assert gone.status_code in (502, 503)
        assert fault(gone)["type"] == "server_error"


def fault(answer: httpx.Response) -> dict[str, object]:
    """The error in an answer that has OpenAI's form."""
    assert answer.headers["content-type"].startswith("application/json"), answer.text
    error: dict[str, object] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_a_server_drains_behind_a_proxy_without_loss(tmp_path: Path) -> None:
    """While the first server drains, its stream goes on, and new ones go to the second one. Then the other way."""
    with (
        running(model="slow", drain_timeout=PATIENCE) as first,
        running() as second,
        proxied("nginx/noria.conf", tmp_path, addresses(first, second)) as http,
    ):
        body = {"prompt": "long", "max_tokens": 1000, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            first.server.handle_exit(signal.SIGTERM, None)
            eventually(lambda: first.http.get("/ready").status_code == 503, "it drains")
            for _ in range(5):
                answer = http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
                assert answer.status_code == 200
            assert busy(first)()
            with hurried():
                rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert second.metric("noria_requests_total", outcome="length") == 5
        eventually(lambda: not first.running(), "the drained server has ended")
        # The next upgrade, at once: the proxy has just seen that nobody answers at the first address.
        assert http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2}).status_code == 200
        with running(at=int(first.url.rpartition(":")[2])) as third:
            second.server.handle_exit(signal.SIGTERM, None)
            for _ in range(5):
                assert http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2}).status_code == 200
            assert third.metric("noria_requests_total", outcome="length") == 5


@pytest.mark.parametrize(("path", "kind"), [("nginx/noria.conf", "unix:"), ("haproxy/haproxy.cfg", "unix@")])
def test_a_server_on_a_unix_socket_below_a_prefix(
    path: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="noria.access")
    sockets = [tmp_path / "first.sock", tmp_path / "second.sock"]
    with (
        running(model="slow", uds=sockets[0], root_path="/noria") as first,
        running(model="slow", uds=sockets[1], root_path="/noria") as second,
        proxied(path, tmp_path, [f"{kind}{socket}" for socket in sockets]) as http,
    ):
        with http.stream("POST", "/noria/v1/completions", json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()  # the connection closes when this is destroyed
            assert next(lines).startswith("data: {")
            assert busy(first)() or busy(second)()
        eventually(lambda: idle(first)() and idle(second)(), "the client of the stream is gone")
        assert http.get("/noria/version").status_code == 200
        eventually(lambda: "GET /version" in caplog.messages, "the request is in the log")
    lines = [json.loads(JsonFormatter().format(line)) for line in caplog.records if line.name == "noria.access"]
    assert [line["client"] for line in lines if line["message"] == "GET /version"] == [CLIENT]


def test_traefiks_configuration_holds_together() -> None:
    """Traefik is not packaged by Debian: names and limits only."""
    http = yaml.safe_load((DEPLOY / "traefik/noria.yml").read_text())["http"]
    (router,) = http["routers"].values()
    balancer = http["services"][router["service"]]["loadBalancer"]
    assert balancer["healthCheck"]["path"] == "/ready"
    assert http["serversTransports"][balancer["serversTransport"]]["forwardingTimeouts"]["idleConnTimeout"] == "60s"
