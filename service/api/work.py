"""The thread for long work: parsing, tokenizing, writing long answers. Small jobs overtake large ones."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")

OVERTAKES = 2
"""Only jobs of at most half the size may overtake. This bounds how deep jobs nest."""


class Abandoned(Exception):
    """Nobody waits for the running job any more."""


@dataclass(slots=True, eq=False)
class Job:
    """Work, its size in bytes, and the future of its result. `resumed` is the time at which its slice began."""

    work: Callable[[], Any]
    size: int
    future: asyncio.Future[Any]
    resumed: float = 0.0


class WorkThread:
    """A thread that takes the smallest waiting job and the oldest by turns.

    A long job calls `pause` between its slices. Smaller jobs then run, for as long as the slice took: a large job and
    the smaller ones each get half of the time. A job without slices calls `aside`. A job is dropped when the task that
    waits for it is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._waiting: dict[Job, None] = {}  # the oldest first
        self._running: Job | None = None
        self._takes_oldest = True
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T], size: int) -> T:
        """The result of `work`. `size` is in bytes. Raises CancelledError after `close`."""
        job = Job(work, size, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closed:
                raise asyncio.CancelledError
            self._waiting[job] = None
            self._changed.notify()
        try:
            return await job.future
        finally:
            with self._changed:
                self._waiting.pop(job, None)

    def pause(self) -> None:
        """Let smaller jobs run. Raises Abandoned if nobody waits for the running job. Other threads do not wait."""
        job = self._running
        if threading.current_thread() is not self._thread or job is None:
            return
        if job.future.cancelled():
            raise Abandoned
        end = 2 * time.monotonic() - job.resumed
        while (smaller := self._take_smaller(job)) is not None:
            self._perform(smaller)
            if time.monotonic() >= end:
                break
        job.resumed = time.monotonic()

    def aside(self, call: Callable[[], T]) -> T:
        """The result of a long call that releases the interpreter: smaller jobs run until it returns."""
        job = self._running
        if threading.current_thread() is not self._thread or job is None:
            return call()
        future: Future[T] = Future()
        threading.Thread(target=self._call, args=(call, future), name=f"{self._thread.name}-aside", daemon=True).start()
        while (smaller := self._take_smaller(job, future.done)) is not None:
            self._perform(smaller)
        job.resumed = time.monotonic()
        return future.result()

    def close(self) -> None:
        """Drop the waiting jobs. The thread ends after the running one."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()
            self._changed.notify()

    def _serve(self) -> None:
        while (job := self._take()) is not None:
            self._perform(job)
            del job  # it may hold a large body

    def _take(self) -> Job | None:
        """The next job; None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            self._takes_oldest = not self._takes_oldest
            job = next(iter(self._waiting)) if self._takes_oldest else min(self._waiting, key=attrgetter("size"))
            del self._waiting[job]
            return job

    def _take_smaller(self, running: Job, waits_until: Callable[[], bool] | None = None) -> Job | None:
        """A job that may overtake the running one. It is waited for until `waits_until` holds, and then is None."""
        with self._changed:
            if waits_until is not None:
                self._changed.wait_for(lambda: waits_until() or self._smaller(running) is not None)
            job = None if waits_until is not None and waits_until() else self._smaller(running)
            if job is not None:
                del self._waiting[job]
            return job

    def _smaller(self, running: Job) -> Job | None:
        job = min(self._waiting, key=attrgetter("size"), default=None)
        return job if job is not None and job.size <= running.size // OVERTAKES else None

    def _call(self, call: Callable[[], T], future: Future[T]) -> None:
        result, error = _outcome(call)
        with self._changed:
            _settle(future, result, error)
            self._changed.notify()

    def _perform(self, job: Job) -> None:
        """Do a job, perhaps between two slices of another."""
        if job.future.cancelled():
            return
        outer, self._running = self._running, job
        job.resumed = time.monotonic()
        result, error = _outcome(job.work)
        self._running = outer
        with suppress(RuntimeError):  # the event loop has ended
            job.future.get_loop().call_soon_threadsafe(_settle, job.future, result, error)


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result of `work`, or its error, whose traceback does not hold the job."""
    try:
        return work(), None
    except Exception as error:
        return None, error
    except BaseException as error:  # a panic of a library in Rust; the thread must go on
        return None, RuntimeError(f"{type(error).__name__}: {error}")


def _settle(future: asyncio.Future[Any] | Future[Any], result: object, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
