"""Noria behind real reverse proxies, with the configurations of `deploy/`."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from service.logs import JsonFormatter
from service.settings import Settings
from tests.service.live import LONG, Live, busy, idle, running
from tests.waiting import PATIENCE, eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
NGINX = """
user root;
daemon off;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/noria.conf;
}}
"""
CLIENT = "127.0.0.5"
"""The client's address; that of the proxy is 127.0.0.1, which the server trusts to name clients."""
FEW_BYTES = 1024
"""A proxy that buffers sends the events in parts of 4 KiB or more; one event has less than 300 bytes."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def addressed(text: str, port: int, servers: list[str]) -> str:
    """A configuration for these addresses in place of its own."""
    for own, other in zip(("127.0.0.1:8000", "127.0.0.1:8001"), servers, strict=True):
        assert own in text
        text = text.replace(own, other)
    assert "8080" in text
    return text.replace("8080", str(port))


def nginx(folder: Path, port: int, servers: list[str]) -> list[str]:
    (folder / "noria.conf").write_text(addressed((DEPLOY / "nginx/noria.conf").read_text(), port, servers))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, servers: list[str]) -> list[str]:
    text = addressed((DEPLOY / "caddy/Caddyfile").read_text(), port, servers)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = {"nginx": nginx, "caddy": caddy}


@contextmanager
def proxied(name: str, folder: Path, first: Live, second: Live) -> Iterator[httpx.Client]:
    """A client of a proxy before two servers."""
    port = free_port()
    command = PROXIES[name](folder, port, [live.url.removeprefix("http://") for live in (first, second)])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
    try:
        transport = httpx.HTTPTransport(local_address=CLIENT)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, transport=transport) as http:
            eventually(lambda: process.poll() is not None or answers(http), "the proxy answers")
            assert process.poll() is None, (folder / "log").read_text()
            yield http
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Live, Live]]:
    with running(model="slow") as first, running(model="slow") as second:
        yield first, second


@pytest.fixture(params=PROXIES)
def proxy(request: pytest.FixtureRequest, servers: tuple[Live, Live], tmp_path: Path) -> Iterator[httpx.Client]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed (Debian: {request.param})")
    with proxied(request.param, tmp_path, *servers) as http:
        yield http


def test_a_proxy_passes_streams_bodies_and_addresses(
    proxy: httpx.Client, servers: tuple[Live, Live], caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = servers

    def flows() -> bool:
        with proxy.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            assert response.status_code == 200
            chunks = response.iter_raw()
            next(chunks)  # it came with the head, which no proxy holds back
            return len(next(chunks)) < FEW_BYTES

    eventually(flows, "a stream whose second event comes alone")
    eventually(idle(first), "the server has seen that the client of the proxy is gone")
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


def test_a_server_drains_behind_a_proxy_without_loss(tmp_path: Path) -> None:
    """While the first server drains, its stream goes on, and new ones go to the second one. Then the other way."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: nginx)")
    with (
        running(model="slow", drain_timeout=PATIENCE) as first,
        running() as second,
        proxied("nginx", tmp_path, first, second) as http,
    ):
        body = {"prompt": "long", "max_tokens": 100, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            first.server.handle_exit(signal.SIGTERM, None)
            eventually(lambda: first.http.get("/ready").status_code == 503, "it drains")
            for _ in range(5):
                answer = http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
                assert answer.status_code == 200
            assert busy(first)()
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


def test_traefiks_configuration_holds_together() -> None:
    """Traefik is not packaged by Debian: names and limits only."""
    http = yaml.safe_load((DEPLOY / "traefik/noria.yml").read_text())["http"]
    (router,) = http["routers"].values()
    balancer = http["services"][router["service"]]["loadBalancer"]
    assert balancer["healthCheck"]["path"] == "/ready"
    assert http["serversTransports"][balancer["serversTransport"]]["forwardingTimeouts"]["idleConnTimeout"] == "60s"
