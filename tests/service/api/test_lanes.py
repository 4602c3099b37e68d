"""The threads for long work: errors, panics and the end. `test_large_bodies.py` has who waits for whom."""

import asyncio
import gc
import threading
import weakref
from functools import partial

import pytest

from service.api.lanes import LANES, Lanes
from tests.waiting import PATIENCE

SIZES = (1, *(size + 1 for size in LANES))
"""A job of each lane."""


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`."""


@pytest.mark.parametrize(("error", "kind"), [(ValueError("own"), ValueError), (Panic("own"), RuntimeError)])
def test_an_error_reaches_the_task_that_waits_and_the_thread_goes_on(
    error: BaseException, kind: type[Exception]
) -> None:
    def fail() -> None:
        raise error

    async def run() -> None:
        lanes = Lanes()
        with pytest.raises(kind, match="own"):
            await lanes.run(fail, 1)
        assert await lanes.run(lambda: "next", 1) == "next"
        lanes.close()

    asyncio.run(run())


@pytest.mark.parametrize("size", SIZES)
def test_a_job_waits_for_its_own_lane_only_and_closing_cancels_it(size: int) -> None:
    async def run() -> None:
        lanes, may, began = Lanes(), threading.Event(), threading.Event()

        def wait() -> None:
            began.set()
            assert may.wait(PATIENCE)

        running = asyncio.create_task(lanes.run(wait, size))
        await asyncio.to_thread(began.wait, PATIENCE)
        others = [other for other in SIZES if other != size]
        assert [await lanes.run(lambda: "runs", other) for other in others] == ["runs"] * 2
        waiting = asyncio.create_task(lanes.run(wait, size))
        await asyncio.sleep(0)
        lanes.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may.set()
        await running

    asyncio.run(run())


class Body(bytearray):
    """A body that tells whether it is still in memory."""


def test_a_cancelled_job_lets_its_body_go_before_a_thread_is_free() -> None:
    async def run() -> None:
        lanes, may, began, body = Lanes(), threading.Event(), threading.Event(), Body(1)

        def wait() -> None:
            began.set()
            assert may.wait(PATIENCE)

        running = asyncio.create_task(lanes.run(wait, 1))
        await asyncio.to_thread(began.wait, PATIENCE)
        waiting = asyncio.create_task(lanes.run(partial(len, body), 1))
        await asyncio.sleep(0)
        held = weakref.ref(body)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        del body, waiting
        gc.collect()
        assert held() is None
        may.set()
        await running
        lanes.close()
        with pytest.raises(asyncio.CancelledError):
            await lanes.run(gc.collect, 1)

    asyncio.run(run())
