"""Long work off the event loop: errors, panics, the end, and the JSON of large answers against orjson's."""

import asyncio
import gc
import threading
import weakref
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api import lanes as work
from service.api.lanes import LANES, Lanes, written
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


LEAVES = st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.none()
ANSWERS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text('ab"\\', max_size=3), inner, max_size=3)
)


@given(ANSWERS)
def test_an_answer_in_parts_is_the_same(answer: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "PART", 2)
        assert written(answer) == orjson.dumps(answer)


def test_a_long_list_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    dumps = orjson.dumps

    def counted(value: Any) -> bytes:
        seen.append(len(value))
        return dumps(value)

    monkeypatch.setattr(orjson, "dumps", counted)
    answer = {"choices": [{"logprobs": {"content": [{"token": "a"}] * 3000}}]}
    assert written(answer) == dumps(answer)
    assert seen == [1024, 1024, 952, 1]
