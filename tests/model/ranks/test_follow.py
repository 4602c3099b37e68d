"""A rank other than 0, as rank 0 sees it over the connection."""

import gc
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from model.ranks import follow as module
from model.ranks.follow import Follower
from model.ranks.links import RankLink
from model.ranks.world import World
from model.sampling_params import SamplingParams


class Compiling:
    """A runner that compiles a grammar until it may go on, and then fails."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def prepare(self, params: SamplingParams) -> None:
        self.may.wait(30)
        raise RuntimeError(f"{params.grammar} cannot be compiled")


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RankLink, Compiling]]:
    """Rank 0's end of a connection to a rank, and the runner of that rank."""
    over = threading.Event()
    monkeypatch.setattr(module.os, "_exit", lambda code: over.set())
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours, theirs = RankLink(socket.create_connection(server.getsockname())), RankLink(server.accept()[0])
    follower, runner = Follower(World(1, 2, 1, 2), theirs, complains=False), Compiling()
    follower._runner = runner  # type: ignore[assignment]
    yield ours, runner
    runner.may.set()
    ours.close()
    assert over.wait(10), "it ends with the connection"
    follower._preparer.shutdown()
    for link in (ours, theirs):
        link.close()
        link.release()


def reply(link: RankLink) -> Any:
    """The next message that is no beat."""
    return next((kind, body) for kind, body, _ in link.received() if kind != "beat")


def test_a_grammar_that_fails_ends_nothing(rank: tuple[RankLink, Compiling]) -> None:
    link, runner = rank
    link.send("prepare", [1, "root ::= a"])
    runner.may.set()
    assert reply(link) == ("reply", [1, None])


def test_a_rank_collects_garbage_though_its_parent_imported_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(module, "follow", lambda world, options: 7)
    monkeypatch.setattr(module, "name_process", lambda name: None)
    monkeypatch.setattr(os, "_exit", end)
    gc.disable()
    try:
        with pytest.raises(SystemExit, match="7"):
            module.run(World(1, 2, 1, 2), None)
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
