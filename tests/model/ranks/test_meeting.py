"""How ranks meet: they agree on what they run, the latest generation counts, and no wait is without end."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from torch import distributed as dist

from model.errors import OptionError
from model.ranks.links import RankLink
from model.ranks.meeting import Host, Joined, difference, join, started_with, versions
from model.ranks.world import World
from tests.e2e.server import free_port

OPTIONS: dict[str, Any] = {"model": "/a", "dtype": "float32", "threads": 2, "quantize": "none", "max_model_len": None}
PAIR = World(0, 2, 0, 2)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def joining(pool: ThreadPoolExecutor, host: Host, options: Any, seconds: float = 20) -> "Future[tuple[Joined, Any]]":
    return pool.submit(join, replace(host.world, rank=1, local_rank=1), options, seconds)


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all sockets after a test: the processes of ranks leave that to their end."""
    made: list[RankLink] = []
    hosts: list[Host] = []
    monkeypatch.setattr(RankLink, "__init__", remembering(RankLink.__init__, made))
    monkeypatch.setattr(Host, "__init__", remembering(Host.__init__, hosts))
    yield
    for link in made:
        link.release()
    for host in hosts:
        if hasattr(host, "_listener"):  # its start may have failed
            host.close()


def remembering(init: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    def wrapped(self: Any, *arguments: Any) -> None:
        made.append(self)
        init(self, *arguments)

    return wrapped


def test_ranks_meet_and_get_rank_0s_options(pool: ThreadPoolExecutor) -> None:
    """Model and threads are a rank's own, and rank 0's later engine has kept its length."""
    host = Host(PAIR)
    own = {**OPTIONS, "model": "/b", "threads": 1}
    found = joining(pool, host, own)
    links = host.meet({**OPTIONS, "max_model_len": 64}, nothing).links
    joined, options = found.result()
    assert options == {**OPTIONS, "max_model_len": 64}
    links[1].send("plan", [1], b"pixels")
    assert joined.links[0].receive() == ("plan", [1], b"pixels")
    joined.links[0].send("output", [2])
    assert links[1].receive() == ("output", [2], b"")


def test_a_rank_with_another_flag_is_refused_on_both_sides(pool: ThreadPoolExecutor) -> None:
    host = Host(PAIR)
    found = joining(pool, host, {**OPTIONS, "quantize": "int8"})
    line = "rank 1 has --quantize int8, rank 0 has none: all ranks need the same flags"
    for meet in (lambda: host.meet(OPTIONS, nothing), found.result):
        with pytest.raises(OptionError, match=line):
            meet()


def test_a_rank_with_another_version_differs() -> None:
    own = {**started_with(OPTIONS), **versions()}
    assert difference(2, own, own) is None
    assert "rank 2 has Noria 0.0.1" in (difference(2, own, {**own, "Noria": "0.0.1"}) or "")
    assert "rank 2 has PyTorch 2.0" in (difference(2, own, {**own, "PyTorch": "2.0"}) or "")


def test_a_rank_that_does_not_come_is_named() -> None:
    host = Host(World(0, 3, 0, 3))
    with pytest.raises(OptionError, match=rf"rank 1, 2 of 3 has not come to {host.world.address} within 0.3 s"):
        host.meet(OPTIONS, nothing, seconds=0.3)


def test_the_end_of_a_rank_ends_the_wait() -> None:
    def ended() -> None:
        raise OptionError("rank 1 has ended")

    with pytest.raises(OptionError, match="rank 1 has ended"):
        Host(PAIR).meet(OPTIONS, ended)


def test_rank_0_that_cannot_be_reached_is_named_with_its_address(capfd: pytest.CaptureFixture[str]) -> None:
    """One line, and nothing from the store of torch.distributed."""
    world = World(1, 2, 0, 1, "127.0.0.1", free_port())
    line = rf"rank 1 cannot reach rank 0 at 127.0.0.1:{world.port}: it tried for 1 s .* Connection refused"
    with pytest.raises(OptionError, match=line):
        join(world, OPTIONS, seconds=1)
    assert capfd.readouterr().err == ""


def test_an_address_that_is_in_use_is_named() -> None:
    port = Host(PAIR).world.port
    with pytest.raises(OptionError, match=f"rank 0 cannot open the meeting at 127.0.0.1:{port}"):
        Host(replace(PAIR, port=port))


def test_a_stranger_at_the_door_joins_nothing(pool: ThreadPoolExecutor) -> None:
    """It does not know the secret, or sends what is no message."""
    host = Host(PAIR)
    port = host._listener.getsockname()[1]
    for frame in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\0\0\0\0[]"):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(frame)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        RankLink(sock).send("hello", {"rank": 1, "secret": "guess", "about": None})
        found = joining(pool, host, None)
        assert host.meet(OPTIONS, nothing).links.keys() == {1}
        assert found.result()[1] == OPTIONS


def test_the_latest_generation_of_an_agents_store(pool: ThreadPoolExecutor) -> None:
    """torchrun's store outlives rank 0's process: who is late joins the process that is there."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=20), wait_for_workers=False)
    world = replace(PAIR, port=store.port, agent=True)
    gone = Host(world)
    gone.close()
    found = joining(pool, gone, OPTIONS)
    threading.Event().wait(0.3)
    host = Host(world)
    assert host.meet(OPTIONS, nothing).links.keys() == {1}
    assert found.result()[1] == OPTIONS
