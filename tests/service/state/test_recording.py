"""Recordings of streams: readers come and go, memory is bounded."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from service.errors.errors import InvalidRequest
from service.state.recording import Recording, Recordings


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


async def all_of(recording: Recording, after: int = -1) -> bytes:
    return b"".join([frame async for frames in recording.read(after) for frame in frames])


def test_readers_get_what_was_and_what_comes() -> None:
    async def test() -> None:
        recording = Recordings(1000).begin()
        for frame in (b"0", b"1", b"2"):
            recording.add(frame)
        readers = [asyncio.create_task(all_of(recording, after)) for after in (-1, 0, 2, 4)]
        await asyncio.sleep(0)
        for frame in (b"3", b"4", b"5"):
            recording.add(frame)
            await asyncio.sleep(0)
        recording.end()
        assert [await reader for reader in readers] == [b"012345", b"12345", b"345", b"5"]
        assert await all_of(recording, 3) == b"45"

    run(test)


def test_a_failure_comes_after_the_events() -> None:
    async def test() -> None:
        recording = Recordings(1000).begin()
        recording.add(b"0")
        recording.end(ValueError("x"))
        reading = recording.read(-1)
        assert await anext(reading) == [b"0"]
        with pytest.raises(ValueError, match="x"):
            await anext(reading)

    run(test)


def test_the_largest_drops_its_oldest_events() -> None:
    async def test() -> None:
        recordings = Recordings(1600)
        small, large = recordings.begin(), recordings.begin()
        small.add(b"s" * 100)
        for number in range(100):
            large.add(b"%02d" % number * 50)
            assert recordings.n_bytes == small.n_bytes + large.n_bytes <= 1600
        small.end()
        large.end()
        assert await all_of(small) == b"s" * 100
        assert large.first + len(large.frames) == 100
        with pytest.raises(InvalidRequest, match=str(large.first)):
            await all_of(large)
        assert await all_of(large, 97) == b"98" * 50 + b"99" * 50
        recordings.forget(large)
        recordings.forget(large)
        assert recordings.n_bytes == 100

    run(test)
