"""A server on a Unix socket: its file, its limits and its clients."""

import os
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest

from model.errors import OptionError
from service.commands.announcement import address, welcome
from service.http.listening import listen_at
from service.settings import Settings
from tests.service.live import Live, answer, hurried, running
from tests.waiting import PATIENCE, eventually


def client(live: Live, path: Path) -> httpx.Client:
    return httpx.Client(base_url=live.url, timeout=PATIENCE, transport=httpx.HTTPTransport(uds=str(path)))


def stale(path: Path) -> Path:
    """A socket's file at which nobody listens: that of a server that was killed."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
    return path


def test_it_answers_streams_and_drains(tmp_path: Path) -> None:
    path = tmp_path / "noria.sock"
    with running(model="slow", uds=path, drain_timeout=PATIENCE) as live:
        assert live.complete(prompt="hi", max_tokens=3)["choices"][0]["text"] == answer("hi", 3)
        body = {"prompt": "long", "max_tokens": 400, "stream": True}
        with client(live, path) as other, other.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            live.server.handle_exit(signal.SIGTERM, None)
            eventually(lambda: live.http.get("/ready").status_code == 503, "it drains")
            with hurried():
                assert [line for line in lines if line][-1] == "data: [DONE]"
        eventually(lambda: not live.running(), "it has ended")
    assert not path.exists()


def test_the_limit_of_an_address_does_not_apply(tmp_path: Path) -> None:
    path = tmp_path / "noria.sock"
    with running(uds=path, max_connections_per_address=1) as live:
        clients = [client(live, path) for _ in range(3)]
        for other in clients * 2:  # each keeps its connection
            assert other.get("/v1/models").status_code == 200
        assert live.metric("noria_connections") == 4
        for other in clients:
            other.close()


def test_every_user_of_the_machine_may_connect_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with listen_at(tmp_path / "noria.sock"):
            assert stat.S_IMODE((tmp_path / "noria.sock").stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_the_file_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    with listen_at(stale(tmp_path / "noria.sock")) as sock, socket.socket(socket.AF_UNIX) as other:
        other.connect(sock.getsockname())
    assert not (tmp_path / "noria.sock").exists()


def test_the_socket_of_a_server_that_listens_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "noria.sock"
    with listen_at(path):
        with (
            pytest.raises(OptionError, match=f"cannot listen on --uds {path}: a server listens there"),
            listen_at(path),
        ):
            pass
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(path))


def test_a_later_servers_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "noria.sock"
    with listen_at(path):
        path.unlink()
        later = stale(path)
    assert later.is_socket()


def test_no_other_file_is_replaced(tmp_path: Path) -> None:
    file, missing = tmp_path / "file", tmp_path / "missing" / "noria.sock"
    file.write_text("kept")
    for path, reason in ((file, "this file is no socket"), (missing, "No such file or directory")):
        with pytest.raises(OptionError, match=f"cannot listen on --uds {path}: {reason}"), listen_at(path):
            pass
    assert file.read_text() == "kept"


def test_the_welcome_has_a_command_that_reaches_it() -> None:
    url = address(Settings(uds=Path("/run/a b.sock")), None)
    assert url == "unix:/run/a b.sock"
    text = welcome("model", url, chat=True, key=False)
    assert "curl --unix-socket '/run/a b.sock' http://localhost/v1/chat/completions -H" in text
    assert "browser" not in text
    assert "CPU" not in text
    assert "\nIt runs on the CPU: old driver\n" in welcome("model", url, chat=True, key=False, unused_gpu="old driver")
