"""Frames are equal before and after a socket, for every reader and every division into pieces."""

import socket
from typing import Any

import pytest

from model.machine import frames

FRAMES: list[tuple[Any, bytes]] = [({"a": [1, "é", None]}, b""), ("", b"\0\xff" * 70_000), ([], b"x"), (0.25, b"")]
WHOLE = b"".join(frames.pack(value, data) for value, data in FRAMES)


@pytest.mark.parametrize("size", [1, 5, 8, 1000, len(WHOLE)])
def test_frames_arrive_whole_however_they_are_cut(size: int) -> None:
    buffer, came = bytearray(), []
    for start in range(0, len(WHOLE), size):
        buffer += WHOLE[start : start + size]
        came += frames.received(buffer)
    assert came == FRAMES
    assert not buffer


def test_a_blocking_reader_gets_frames_then_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for value, data in FRAMES[2:]:
                frames.send(theirs, value, data)
            theirs.sendall(WHOLE[:9])
        assert [frames.receive(ours) for _ in FRAMES[2:]] == FRAMES[2:]
        with pytest.raises(OSError):  # noqa: PT011  (any that says the other end is gone)
            frames.receive(ours)
