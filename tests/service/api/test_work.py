"""The thread for long work: the order of its jobs, and jobs that nobody waits for."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from service.api.work import WorkThread
from tests.waiting import PATIENCE


class Busy:
    """A thread with a first job that waits until the test lets it go on. `done` has the names of finished jobs."""

    def __init__(self, size: int) -> None:
        self.thread = WorkThread("test-work")
        self.done: list[str] = []
        self.may = threading.Event()
        self.began = threading.Event()
        self.tasks: dict[str, asyncio.Task[str]] = {}
        self.add("first", size, self._wait)

    def _wait(self) -> None:
        self.began.set()
        assert self.may.wait(PATIENCE)

    def add(self, name: str, size: int, work: Callable[[], object] = lambda: None) -> None:
        def named() -> str:
            work()
            self.done.append(name)
            return name

        self.tasks[name] = asyncio.create_task(self.thread.run(named, size))

    async def finish(self) -> list[str | BaseException]:
        self.may.set()
        return await asyncio.wait_for(asyncio.gather(*self.tasks.values(), return_exceptions=True), PATIENCE)


@asynccontextmanager
async def busy(size: int = 1) -> AsyncIterator[Busy]:
    found = Busy(size)
    try:
        await asyncio.to_thread(found.began.wait, PATIENCE)
        yield found
    finally:
        found.may.set()
        found.thread.close()


def test_the_smallest_and_the_oldest_go_by_turns() -> None:
    """A large job is not overtaken for ever."""

    async def run() -> None:
        async with busy() as work:
            for name, size in (("large", 900), ("middle", 50), ("small", 5), ("smaller", 4), ("smallest", 3)):
                work.add(name, size)
            await asyncio.sleep(0)
            await work.finish()
            assert work.done == ["first", "large", "smallest", "middle", "smaller", "small"]

    asyncio.run(run())


def test_small_jobs_run_between_the_slices_of_a_large_one() -> None:
    async def run() -> None:
        async with busy() as work:
            may, began = threading.Event(), threading.Event()

            def two_slices() -> None:
                began.set()
                assert may.wait(PATIENCE)
                work.thread.pause()

            work.add("large", 1000, two_slices)
            await asyncio.sleep(0)
            work.may.set()
            await asyncio.to_thread(began.wait, PATIENCE)
            work.add("as large", 999)
            work.add("small", 10, work.thread.pause)
            await asyncio.sleep(0)
            may.set()
            await work.finish()
            assert work.done == ["first", "small", "large", "as large"]

    asyncio.run(run())


def test_a_job_that_nobody_waits_for_is_dropped() -> None:
    """One that has not begun never begins, one that has begun ends at its next pause."""
    begun: list[str] = []

    async def run() -> None:
        async with busy() as work:
            may, began = threading.Event(), threading.Event()

            def two_slices() -> None:
                began.set()
                assert may.wait(PATIENCE)
                work.thread.pause()
                begun.append("second slice")

            work.add("sliced", 10, two_slices)
            work.add("waiting", 20, lambda: begun.append("waiting"))
            work.add("kept", 30)
            await asyncio.sleep(0)
            work.tasks["waiting"].cancel()
            work.may.set()
            await asyncio.to_thread(began.wait, PATIENCE)
            work.tasks["sliced"].cancel()
            await asyncio.sleep(0)
            may.set()
            await work.finish()
            assert work.done == ["first", "kept"]

    asyncio.run(run())
    assert begun == []


def test_an_error_reaches_the_task_that_waits() -> None:
    def fail() -> None:
        raise ValueError("the job's own")

    async def run() -> None:
        async with busy() as work:
            work.add("failing", 1, fail)
            work.add("next", 2)
            await asyncio.sleep(0)
            first, failed, after = await work.finish()
            assert (first, str(failed), after) == ("first", "the job's own", "next")

    asyncio.run(run())


def test_other_threads_do_not_wait_for_jobs() -> None:
    async def run() -> None:
        async with busy() as work:
            work.thread.pause()

    asyncio.run(run())


def test_closing_cancels_what_waits_and_ends_the_thread() -> None:
    async def run() -> threading.Thread:
        async with busy() as work:
            work.add("waiting", 1)
            await asyncio.sleep(0)
            work.thread.close()
            with pytest.raises(asyncio.CancelledError):
                await work.tasks["waiting"]
            with pytest.raises(asyncio.CancelledError):
                await work.thread.run(lambda: None, 1)
            await work.finish()
            assert work.done == ["first"]
            return work.thread._thread

    thread = asyncio.run(run())
    thread.join(PATIENCE)
    assert not thread.is_alive()
