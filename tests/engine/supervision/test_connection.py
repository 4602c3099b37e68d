"""The service's end of an engine's wire: whole messages in both directions, and nothing after a fault."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from model.media import MediaSpan
from model.sampling_params import SamplingParams
from service.engine.messages import (
    PIECE,
    Abort,
    Beat,
    Failed,
    FromEngine,
    LoadModel,
    Report,
    Submit,
    ToEngine,
    Update,
    Wire,
    frame,
)
from service.engine.supervision.connection import EngineConnection
from tests.engine.hosting import thread


@asynccontextmanager
async def connected(
    take: Callable[[FromEngine], None] = lambda message: None,
) -> AsyncIterator[tuple[EngineConnection, socket.socket]]:
    """A connection that has sent its first message, and the engine's end of it."""
    ours, theirs = socket.socketpair()
    engine: Any = SimpleNamespace(spawn=lambda: ours, kill=lambda: None, wait=lambda: "ended")
    connection = EngineConnection(engine)
    await connection.open()
    connection.load(LoadModel({}, 60.0), take)
    with theirs:
        yield connection, theirs
        await connection.close()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_arrive_whole_however_the_wire_cuts_them(size: int) -> None:
    sent = [Beat(0.5), Report((Update(3, (7, 8), finish="stop"), Update(4, (5,)))), Failed("no"), Report(())]
    came: list[FromEngine] = []

    async def main() -> None:
        async with connected(came.append) as (connection, theirs):
            data = b"".join(map(frame, sent))
            for start in range(0, len(data), size):
                connection.data_received(data[start : start + size])
            theirs.close()
            assert connection.ended is not None
            await connection.ended
            assert connection.failure == "no"

    asyncio.run(main())
    assert came == sent


def test_nothing_is_taken_after_a_fault() -> None:
    """A report that is lost has tokens that the next one continues."""
    taken: list[FromEngine] = []

    def take(message: FromEngine) -> None:
        taken.append(message)
        raise RuntimeError("a fault")

    async def main() -> None:
        async with connected(take) as (connection, theirs):
            for number in range(3):
                theirs.sendall(frame(Report((Update(number),))))
            assert connection.ended is not None
            with pytest.raises(RuntimeError, match="a fault"):
                await connection.ended

    asyncio.run(main())
    assert taken == [Report((Update(0),))]


def test_a_message_with_many_pixels_keeps_its_place_and_lets_the_loop_run() -> None:
    """The engine reads nothing at first. Then it gets all messages, in order, while the loop goes on."""
    large = Submit(2, [1], SamplingParams(), media=(MediaSpan(0, 2, 2, "d"),), inputs=bytes(range(256)) * 2**15)
    sent: list[ToEngine] = [Abort(1), large, Abort(2)]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with connected() as (connection, theirs):
            for message in sent:
                connection.send(message)
            await asyncio.sleep(0.01)
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() < 2 * PIECE  # the rest is not copied
            wire, turns = Wire(theirs), 0
            reading = loop.run_in_executor(None, lambda: [wire.receive() for _ in range(4)])
            while not reading.done():
                await asyncio.sleep(0)
                turns += 1
            assert reading.result() == [LoadModel({}, 60.0), *sent]
            assert turns > 10

    asyncio.run(main())


def test_the_beats_of_a_waiting_engine_do_not_fill_its_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket holds some 300 beats that nobody reads."""
    monkeypatch.setattr("service.engine.worker.BEAT_SECONDS", 0.0005)

    async def main() -> None:
        connection, heard = EngineConnection(thread()), set()
        await connection.open()

        def enough() -> bool:
            heard.add(connection._heard)
            return len(heard) > 600

        deadline = asyncio.get_running_loop().time() + 30
        while not enough():
            assert asyncio.get_running_loop().time() < deadline, f"only {len(heard)} beats have arrived"
            await asyncio.sleep(0)
        await connection.close()

    asyncio.run(main())
