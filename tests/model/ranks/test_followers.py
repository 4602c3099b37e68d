"""The other ranks as rank 0 sees them: what they send arrives, and the first that is lost ends the group."""

import queue
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from model.ranks import followers as module
from model.ranks.followers import Followers, Lost
from model.ranks.links import BEAT_SECONDS, RankLink

Ends = tuple[Followers, dict[int, RankLink], "queue.SimpleQueue[str]"]


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


@pytest.fixture
def group() -> Iterator[Ends]:
    """Rank 0's side of two other ranks, their ends of the connections, and the reason why the group has ended."""
    pairs = {rank: tuple(map(RankLink, connected())) for rank in (1, 2)}
    followers, reasons = Followers(), queue.SimpleQueue[str]()
    followers.connect({rank: ours for rank, (ours, _) in pairs.items()}, {})
    followers.watch(reasons.put)
    yield followers, {rank: theirs for rank, (_, theirs) in pairs.items()}, reasons
    for _, theirs in pairs.values():
        theirs.close()
    time.sleep(2 * module.WATCH_SECONDS)  # threads see the end
    for links in pairs.values():
        for link in links:
            link.release()


def test_messages_of_ranks_arrive_in_order(group: Ends) -> None:
    followers, theirs, _ = group
    for number in range(3):
        theirs[2].send("output", number)
    theirs[1].send("offer", [1])
    theirs[2].send("offer", [2])
    assert followers.take_all("offer") == {1: [1], 2: [2]}
    assert [followers.take(2, "output") for _ in range(3)] == [0, 1, 2]


def test_plans_with_pixels_go_to_the_first_stage_only(group: Ends) -> None:
    followers, theirs, _ = group
    followers.send_plan(b"with pixels", frozenset({2}), b"without")
    assert (theirs[1]._sock.recv(99), theirs[2]._sock.recv(99)) == (b"with pixels", b"without")


def raises(theirs: dict[int, RankLink]) -> None:
    theirs[1].send("failed", "ValueError: x")


def closes(theirs: dict[int, RankLink]) -> None:
    theirs[2].close()


@pytest.mark.parametrize(
    ("loses", "reason"), [(raises, "rank 1 failed: ValueError: x"), (closes, "rank 2 has closed its connection")]
)
def test_one_that_is_lost_ends_all(group: Ends, loses: Callable[[dict[int, RankLink]], None], reason: str) -> None:
    """Rank 0's own error, which follows from it, is not the reason. Who waits for a rank gets Lost."""
    followers, theirs, reasons = group
    loses(theirs)
    with pytest.raises(Lost, match=reason):
        followers.end(RuntimeError("Connection closed by peer"))
    assert reasons.get(timeout=10).startswith(reason)
    with pytest.raises(Lost):
        followers.take(1, "output")
    with pytest.raises(Lost):
        followers.call(2, "prepare", "{}")
    assert list(theirs[1].received()) == [], "the other ranks see that all is over"


def test_a_silent_rank_is_lost(monkeypatch: pytest.MonkeyPatch, group: Ends) -> None:
    _, theirs, reasons = group
    monkeypatch.setattr(module, "SILENCE_SECONDS", 6 * BEAT_SECONDS)
    while reasons.empty():
        theirs[1].send("beat")
        time.sleep(BEAT_SECONDS / 2)
    assert reasons.get().startswith("rank 2 has been silent for 3 s")


def test_an_error_of_rank_0_ends_all(group: Ends) -> None:
    followers, _, reasons = group
    with pytest.raises(Lost, match="rank 0 failed: ValueError: x"):
        followers.end(ValueError("x"))
    assert reasons.get(timeout=10) == "rank 0 failed: ValueError: x"
