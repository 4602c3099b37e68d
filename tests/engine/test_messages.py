"""Messages are equal before and after the wire."""

import asyncio
import json
import socket
from dataclasses import replace

import pytest

from model.batch import TokenLogprob
from model.image_spans import ImageFormat, ImageSpan
from model.sampling_params import SamplingParams
from service.engine.mailbox import merge
from service.engine.messages import (
    Abort,
    AdapterLoaded,
    AdapterRead,
    Beat,
    Failed,
    FromEngine,
    LoadAdapter,
    Loading,
    LoadModel,
    PoolStats,
    Ready,
    Report,
    Stats,
    Stop,
    Submit,
    ToEngine,
    UnloadAdapter,
    Update,
    data_of,
    from_json,
    to_json,
)
from service.engine.wire import PIECE, MessageProtocol, Wire, frame
from tests.fakes import make_info

SCORED = TokenLogprob(7, -0.25, ((7, -0.25), (9, -2.0)))
UPDATE = Update(3, (7, 8), (SCORED,), (SCORED, SCORED), "stop", 4, 0.5, "why", 9, (0.25, -1.5), "fault")


@pytest.mark.parametrize(
    "message",
    [
        LoadModel({"model": "m", "dtype": "auto"}, 60.0),
        Submit(1, [1, 2], SamplingParams(stop=("a",), logit_bias=((3, -1.5),), stop_token_ids=(2,), logprobs=2), 5),
        Submit(2, [1], SamplingParams(allowed_token_ids=(3, 4), bad_words=((5,), (6, 7))), 0, -3, "salt", 128, "a.b"),
        Submit(3, [1] * 6, SamplingParams(), images=(ImageSpan(0, 2, 2, "d"),), adapter=2, pixels=bytes(range(256))),
        Abort(1),
        LoadAdapter(1, "/adapters/a"),
        UnloadAdapter(1),
        AdapterRead(1),
        AdapterLoaded(1),
        AdapterLoaded(2, "no"),
        Stop(),
        Loading("loading weights", 0.25),
        Ready(make_info(pools=((None, 4), (16, 8)))),
        Ready(replace(make_info(), images=ImageFormat(14, 2, 1540, 3), image_tokens=9, max_adapters=4)),
        Failed("no"),
        Beat(),
        Beat(0.5, 2**30, 12.25),
        Report(
            (UPDATE, Update(4)), Stats(1, 2, 3, 0.5, 4, 5, 6, 7, 8, (PoolStats(None, 1, 2, 3), PoolStats(16, 0, 0, 9)))
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_round_trip(message: object) -> None:
    assert from_json(json.loads(to_json(message)), data_of(message)) == message  # type: ignore[arg-type]


def test_merged_updates_keep_order_and_the_first_ones_facts() -> None:
    merged = merge(Update(3, (1,), cached=4, queued=0.5), Update(3, (2, 3), finish="length"))
    assert merged == Update(3, (1, 2, 3), finish="length", cached=4, queued=0.5)
    assert merge(Update(3, (1,)), Update(3, finish="error", fault="why")).fault == "why"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_arrive_whole_however_the_wire_cuts_them(size: int) -> None:
    sent = [Beat(), Report((UPDATE, Update(4, (5,)))), Failed("no"), Report(())]
    came: list[FromEngine] = []

    async def read() -> None:
        protocol, data = MessageProtocol(came.append), b"".join(map(frame, sent))
        for start in range(0, len(data), size):
            protocol.data_received(data[start : start + size])
        protocol.connection_lost(None)
        await protocol.ended

    asyncio.run(read())
    assert came == sent


def test_nothing_is_taken_after_a_fault() -> None:
    """A report that is lost has tokens that the next one continues."""
    taken: list[FromEngine] = []

    def take(message: FromEngine) -> None:
        taken.append(message)
        raise RuntimeError("a fault")

    async def main() -> None:
        protocol = MessageProtocol(take)
        for number in range(3):
            protocol.data_received(frame(Report((Update(number),))))
        with pytest.raises(RuntimeError, match="a fault"):
            await protocol.ended

    asyncio.run(main())
    assert taken == [Report((Update(0),))]


def test_a_message_with_many_pixels_keeps_its_place_and_lets_the_loop_run() -> None:
    """The engine reads nothing at first. Then it gets all messages, in order, while the loop goes on."""
    large = Submit(2, [1], SamplingParams(), images=(ImageSpan(0, 2, 2, "d"),), pixels=bytes(range(256)) * 2**15)
    sent: list[ToEngine] = [Abort(1), large, Abort(2)]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, protocol = await loop.create_unix_connection(lambda: MessageProtocol(print), sock=ours)
        for message in sent:
            protocol.send(message)
        await asyncio.sleep(0.01)
        assert transport.get_write_buffer_size() < 2 * PIECE  # the rest is not copied
        wire, turns = Wire(theirs), 0
        reading = loop.run_in_executor(None, lambda: [wire.receive() for _ in sent])
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert reading.result() == sent
        assert turns > 10
        transport.close()
        wire.release()

    asyncio.run(main())
