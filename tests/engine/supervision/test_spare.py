"""The spare engine: real processes, without a delay before the spare starts."""

import asyncio
import os
import signal

import pytest

from service.engine.client import EngineClient
from service.engine.supervision import spare
from service.engine.supervision.connection import EngineConnection
from service.engine.supervision.spare import LONGEST_SECONDS, Spare, backoff
from tests.engine.driving import expected
from tests.engine.hosting import PARAMS, Hosts, collect, process, standing_by, thread, until, with_client
from tests.waiting import ended, named


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "AFTER_SECONDS", 0.0)


def test_the_spare_takes_over_and_another_one_follows() -> None:
    hosts, restarts = Hosts(process), []

    async def body(client: EngineClient) -> None:
        await standing_by(hosts, 1)
        os.kill(hosts.pid(0), signal.SIGKILL)
        await until(lambda: bool(restarts))
        await client.serving()
        assert named(hosts.pid(1)) == "noria-engine"
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        await standing_by(hosts, 2)
        assert len(hosts.made) == 3

    with_client(hosts, body, spare=Spare(hosts), on_restart=lambda: restarts.append(1))
    assert restarts == [1]
    assert all(ended(hosts.pid(number)) for number in range(3))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_spare_that_dies_or_stops_is_replaced_and_nothing_restarts(number: signal.Signals) -> None:
    hosts, restarts = Hosts(process), []

    async def body(client: EngineClient) -> None:
        await standing_by(hosts, 1)
        os.kill(hosts.pid(1), number)
        await standing_by(hosts, 2)
        assert client.state == "ready"
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)

    with_client(hosts, body, spare=Spare(hosts), on_restart=lambda: restarts.append(1))
    assert restarts == []
    assert ended(hosts.pid(1))


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


def test_the_wait_grows_up_to_a_ceiling_however_many_failures() -> None:
    assert backoff(0) == 0
    for failures, longest in ((1, 0.5), (2, 1.5), (3, 3.5), (10, LONGEST_SECONDS), (5000, LONGEST_SECONDS)):
        waits = [backoff(failures) for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
