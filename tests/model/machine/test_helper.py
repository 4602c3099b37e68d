"""The link to a helper process: which waits end, and when."""

import socket
from itertools import count

import pytest

from model.machine import frames
from model.machine.helper import Link


def test_a_process_that_does_nothing_has_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = Link(ours, ticks=lambda: 0, seconds=0.3)
        with pytest.raises(TimeoutError, match="it does nothing"):
            link.receive()
        with pytest.raises(TimeoutError, match="it does nothing"):
            link.send("x" * 2**24)


def test_a_process_that_works_is_waited_for() -> None:
    """It uses processor time each time somebody looks, and answers at the tenth."""
    ours, theirs = socket.socketpair()
    looks = count(1)

    def ticks() -> int:
        if (look := next(looks)) == 10:
            frames.send(theirs, "at last")
        return look

    with ours, theirs:
        assert Link(ours, ticks, seconds=0.0).receive() == ("at last", b"")
