"""A deadline on both event loops that a server may have: uvloop's timers differ from those of asyncio."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from service.http.connection.flow import Deadline
from tests.waiting import PATIENCE

SOON = (0.0, 1e-6, 4e-4, 6e-4)
"""uvloop calls what is due within half a millisecond at once, and gives a handle that knows no time."""
Watch = Callable[[Deadline], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Watch], list[float]]:
    """Runs a use of a deadline, and waits until it is late; returns for how many seconds, once for each call."""

    async def late(use: Watch) -> list[float]:
        loop = asyncio.get_running_loop()
        begun, calls, done = loop.time(), list[float](), asyncio.Event()
        deadline = Deadline(lambda: (calls.append(loop.time() - begun), done.set())[0])
        use(deadline)
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        deadline.close()
        return calls

    def run_(use: Watch) -> list[float]:
        with asyncio.Runner(loop_factory=request.param) as runner:
            work: Coroutine[Any, Any, list[float]] = late(use)
            return runner.run(work)

    return run_


@pytest.mark.parametrize("soon", SOON)
@pytest.mark.parametrize("then", [0.05, *SOON])
def test_the_time_that_was_set_last_counts(run: Callable[[Watch], list[float]], soon: float, then: float) -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(soon)
        deadline.set(30.0)
        deadline.set(then)

    (late,) = run(use)
    assert late >= then - 0.002  # uvloop's clock counts milliseconds


@pytest.mark.parametrize("soon", SOON)
def test_a_deadline_that_is_put_off_is_not_late(run: Callable[[Watch], list[float]], soon: float) -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(soon)
        deadline.set(0.05)

    (late,) = run(use)
    assert late >= 0.05 - 0.002


def test_a_deadline_that_is_cleared_is_never_late(run: Callable[[Watch], list[float]]) -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(0.0)
        deadline.clear()
        asyncio.get_running_loop().call_later(0.01, deadline.set, 0.01)

    (late,) = run(use)
    assert late >= 0.02 - 0.002
