"""What the engine process runs, on a thread: how it finds its runner, and how it ends with a process of the runner."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from model.machine import frames
from service.engine.messages import Failed, LoadModel, Ready, Stop, Wire, frame, from_json
from service.engine.worker import Worker, import_callable
from tests.engine.hosting import OPTIONS
from tests.fakes import FakeRunner, create_fake, make_info


class LosingRunner(FakeRunner):
    """A runner that loses a process as soon as it serves."""

    def watch(self, lost: Callable[[str], None]) -> None:
        threading.Thread(target=lost, args=["rank 1 is gone: killed by SIGKILL"]).start()


def create_losing(progress: Callable[[str, float], None], **options: object) -> LosingRunner:
    return LosingRunner(make_info(page_size=16, pools=((None, 512),), max_model_len=512))


def creator(name: str) -> Callable[..., Any]:
    return {"losing": create_losing, "fake": create_fake}[name]


def messages(sock: socket.socket) -> Iterator[Any]:
    while True:
        yield from_json(*frames.receive(sock))


def test_a_runner_has_a_name_and_perhaps_an_argument() -> None:
    assert import_callable("tests.fakes:create_fake") is create_fake
    assert import_callable(f"{__name__}:creator:losing") is create_losing


def test_the_engine_says_why_it_ends_when_its_runner_has_lost_a_process() -> None:
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    worker = Worker(Wire(theirs), end=ended.set)
    thread = threading.Thread(target=worker.run, args=[f"{__name__}:creator:losing"])
    thread.start()
    with ours:
        ours.sendall(frame(LoadModel({}, 60.0)))
        found = messages(ours)
        assert any(isinstance(message, Ready) for message in found)
        failed = next(message for message in found if isinstance(message, Failed))
        assert failed.message == "rank 1 is gone: killed by SIGKILL"
        assert ended.wait(10)
    thread.join(10)
    assert not thread.is_alive()


def test_a_stop_closes_the_runner_and_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner tells other hosts. A service that is gone says nothing, and its runner neither."""
    closed = threading.Event()
    monkeypatch.setattr(FakeRunner, "close", lambda runner: closed.set())
    for stops in (False, True):
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=Worker(Wire(theirs), end=lambda: None).run, args=["tests.fakes:create_fake"])
        thread.start()
        with ours:
            ours.sendall(frame(LoadModel(OPTIONS, 60.0)))
            assert any(isinstance(message, Ready) for message in messages(ours))
            if stops:
                ours.sendall(frame(Stop()))
                assert closed.wait(10)
        thread.join(10)
        assert not thread.is_alive()
        assert closed.is_set() == stops
