"""The port for probes: it answers when the other one cannot."""

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.http.health import HealthListener
from service.http.listening import listen
from tests.service.live import Live, begun, running
from tests.waiting import PATIENCE, eventually


@contextlib.contextmanager
def with_probes(**options: object) -> Iterator[tuple[Live, str]]:
    with listen("127.0.0.1", 0) as health:
        url = f"http://127.0.0.1:{health.getsockname()[1]}"
        with running(health=health, **options) as live:  # type: ignore[arg-type]
            yield live, url


def test_it_says_what_the_other_port_says() -> None:
    with with_probes(model="slow", drain_timeout=PATIENCE) as (live, url):
        for path in ("/live", "/ready", "/health"):
            assert httpx.get(url + path).json() == live.http.get(path).json()
        assert httpx.head(url + "/live").status_code == 200
        assert httpx.get(url + "/v1/models").status_code == 404
        with begun(live):
            live.server.handle_exit(15, None)
            eventually(lambda: httpx.get(url + "/ready").status_code == 503, "it is draining")
            assert httpx.get(url + "/ready").json() == {"status": "draining"}


def test_a_blocked_event_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.operations.health.STALLED_SECONDS", 0.4)
    with with_probes() as (live, url):
        loop = live.server._loop
        assert loop is not None
        eventually(lambda: httpx.get(url + "/live").status_code == 200, "the loop runs")
        release = threading.Event()
        loop.call_soon_threadsafe(release.wait, 30)
        try:
            eventually(lambda: httpx.get(url + "/live").json() == {"status": "stalled"}, "it says so")
        finally:
            release.set()
        eventually(lambda: httpx.get(url + "/live").status_code == 200, "the loop runs again")


def test_it_answers_without_a_free_descriptor() -> None:
    with with_probes() as (_, url), contextlib.ExitStack() as stack:
        host, port = httpx.URL(url).host, httpx.URL(url).port
        client = stack.enter_context(socket.socket())
        client.settimeout(10)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, before[1]))
        with contextlib.suppress(OSError):
            while True:
                descriptor = os.dup(0)
                stack.callback(os.close, descriptor)
        client.connect((host, port))
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.0 200")


def test_clients_that_drip_do_not_keep_others_out() -> None:
    """Each sends a byte more often than any pause that is allowed. Its time is over all the same."""
    with listen("127.0.0.1", 0) as sock, contextlib.ExitStack() as stack:
        listener = HealthListener(sock, lambda path: (200, path.encode()))
        listener.start()
        stack.callback(listener.close)
        stop = threading.Event()
        clients = [stack.enter_context(socket.create_connection(sock.getsockname())) for _ in range(20)]

        def drip() -> None:
            while not stop.wait(0.2):
                for client in clients:
                    with contextlib.suppress(OSError):
                        client.sendall(b"G")

        thread = threading.Thread(target=drip)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        assert httpx.get(f"http://127.0.0.1:{sock.getsockname()[1]}/x", timeout=30).text == "/x"
