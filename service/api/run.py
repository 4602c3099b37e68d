"""Answers that outlive their requests: each is computed by a task, and read by whoever comes."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from starlette.types import Scope

from service.access.record import RequestRecord
from service.errors.errors import ApiError, Unavailable, as_api_error
from service.http.sse import Framing, Json, PlainEvents
from service.observe.view.live import LiveRequest
from service.state.recording import Recording, Recordings

SIGN_SECONDS = 1.0
"""Seconds between signs of life to a client that resumes: after three without one it goes on at another replica."""
Key = tuple[str, str]
"""The owner of a run and its name, by which clients come back to it."""
Failed = Callable[[ApiError], Awaitable[Exception | None]]
"""Gets the error of a run that failed after its first event, and returns the one that its readers get."""


class Run:
    """An answer that a task computes. Its frames go into a recording, whose readers come and go.

    `patience` is the number of seconds that it lives without a reader; None: until it is complete. `framing` is that of
    its frames once the answer has begun.
    """

    def __init__(self, runs: "Runs", key: Key, patience: float | None) -> None:
        self.framing: Framing = PlainEvents()
        self.recording: Recording
        self.work: LiveRequest
        self.task: asyncio.Task[None]
        self._runs = runs
        self._key = key
        self._patience = patience
        self._scope: Scope
        self._begun: Callable[[], None]
        self._observed = ExitStack()
        self._n_readers = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(
        self,
        work: LiveRequest,
        scope: Scope,
        answer: Coroutine[None, None, None],
        failed: Failed,
        begun: Callable[[], None],
    ) -> None:
        """Compute the answer. At its first event call `begun`, let clients find the run, and observe it as a request.

        Until then it is a part of its request, which gets the error of a refusal. `failed` may write the last events of
        an answer that failed.
        """
        self.work, self.recording = work, self._runs.recordings.begin()
        self._scope, self._begun = scope, begun
        self.task = self._runs.start(self._compute(answer, failed))

    def open(self, framing: Framing) -> None:
        """Take the framing of the answer."""
        self.framing = framing

    async def write(self, frames: Sequence[bytes]) -> None:
        """Take frames of the answer, as `EventWriter` does."""
        if not self.recording.n_events:
            self._runs.found[self._key] = self
            self.work.record.status = 200
            self._observed.enter_context(self._runs.observing(self.work.record, self._scope))
            self._begun()
        for frame in frames:
            self.recording.add(frame)

    def cancel(self) -> None:
        """Cancel the answer for a client of its owner."""
        self.work.cancel("by the id of its response", self.work.record.sender)

    async def begun(self) -> None:
        """Wait for the first event. Raises the error of an answer that failed before."""
        async for _ in self.recording.read(-1):
            return

    @contextmanager
    def reading(self) -> Iterator[Recording]:
        """Count a reader inside the context."""
        self._n_readers += 1
        try:
            yield self.recording
        finally:
            self._n_readers -= 1
            if not self._n_readers:
                self._wait()

    async def _compute(self, answer: Coroutine[None, None, None], failed: Failed) -> None:
        failure: Exception | None = None
        try:
            with self._observed:
                failure = await self._failure_of(answer)
            if failure is not None and self.recording.n_events:
                failure = await failed(failure)
        finally:
            self._end(failure)

    async def _failure_of(self, answer: Coroutine[None, None, None]) -> ApiError | None:
        """Return the error of an answer, None if it is complete."""
        try:
            await answer
        except asyncio.CancelledError:
            self.work.record.outcome = "abort"
            return Unavailable("nobody waited for this answer any more", "stream_ended")
        except Exception as error:
            return as_api_error(error)
        return None

    def _end(self, failure: Exception | None) -> None:
        self.recording.end(failure)
        self.work = LiveRequest(self.work.record)  # what the call held is gone
        if self._patience is None or not self.recording.n_events or not self._is_found:
            self._hide()
            self._runs.recordings.forget(self.recording)
        elif not self._n_readers:
            self._wait()

    def _wait(self) -> None:
        """Wait for a reader, until the patience is over."""
        if not self.recording.n_events:  # it is still a part of its request, which has ended
            self.task.cancel()
            return
        if self._patience is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._abandon)

    def _abandon(self) -> None:
        if self._n_readers:
            return
        self._hide()
        if self.recording.ended:
            self._runs.recordings.forget(self.recording)
        else:
            self.task.cancel()

    @property
    def _is_found(self) -> bool:
        """Return whether clients find this run by its key: a later one may have the same."""
        return self._runs.found.get(self._key) is self

    def _hide(self) -> None:
        if self._is_found:
            del self._runs.found[self._key]


class Reader:
    """The framing of those who read a run."""

    def __init__(self, run: Run, *, numbered: bool) -> None:
        self._run = run
        self._numbered = numbered

    @property
    def done(self) -> bytes:
        return self._run.framing.done

    def frame(self, data: Json) -> bytes:
        return self._run.framing.frame(data)

    def failure(self, error: ApiError) -> Json:
        return self._run.framing.failure(error)

    def identified(self, frame: bytes, id: bytes) -> bytes:
        return self._run.framing.identified(frame, id)

    def keep_alive(self) -> tuple[bytes, float]:
        """Return the run's sign of life; after ids one that is no event: only the run makes events."""
        if self._numbered:
            return self._run.framing.sign, SIGN_SECONDS
        return self._run.framing.keep_alive()

    @property
    def sign(self) -> bytes:
        return self._run.framing.sign


class Runs:
    """All runs that clients may come back to. `limit` bounds the bytes of their recordings together.

    A run is observed inside the context of `observing`, as a request is.
    """

    def __init__(self, observing: Callable[[RequestRecord, Scope], AbstractContextManager[None]], limit: int) -> None:
        self.observing = observing
        self.recordings = Recordings(limit)
        self.found: dict[Key, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End what still runs."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
