"""Generations that go on without the connection of their request, and the recordings of their events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Scope

from service.access.record import RequestRecord
from service.errors.errors import Unavailable
from service.http.sse import EventStream, Framing, while_connected
from service.state.recording import Recording, Recordings

Ended = Callable[[Exception | None], Awaitable[None]]
"""Called at the end of a generation, with the error if it failed; it must end the recording."""


@dataclass(slots=True, eq=False)
class Ongoing:
    """A generation that goes on without its connection. `unread` is called when its last reader leaves."""

    recording: Recording
    task: "asyncio.Task[None] | None" = None
    n_readers: int = 0
    unread: Callable[[], None] = lambda: None

    def stream(self, after: int, expired: "asyncio.Future[None]", framing: Framing) -> EventStream:
        """A response of the events after number `after`, to the end."""
        return EventStream(self.recording.read(after), self._reading(), expired, framing)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Count a reader, who reads inside the context."""
        self.n_readers += 1
        try:
            yield
        finally:
            self.n_readers -= 1
            if not self.n_readers:
                self.unread()


class OngoingWork:
    """All generations without a connection. `limit` bounds the bytes of their recordings together.

    `found` has those that clients may come back to, by owner and id; None for what waits for the model after a restart,
    to be computed again. `expired` is done at the end of a drain's time.
    """

    def __init__(
        self,
        observing: Callable[[RequestRecord, Scope], AbstractContextManager[None]],
        expired: "asyncio.Future[None]",
        limit: int,
    ) -> None:
        self.recordings = Recordings(limit)
        self.found: dict[tuple[str, str], Any] = {}
        self._observing = observing
        self._expired = expired
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, request: RequestRecord, scope: Scope, guard: ExitStack, frames: AsyncIterator[list[bytes]], ended: Ended
    ) -> Ongoing:
        """Start to record the frames of a generation, whose admission `guard` gets.

        The work has the record of the scope, with its own line in the log, and is in flight instead of its request.
        `request` is the one that `detach` gave, and counts as a request that generates nothing.
        """
        work: RequestRecord = scope["noria.record"]
        request.policy = replace(request.policy, operation=None)
        request.ignored = work.ignored
        request.place.close()
        if work.key is not None:
            guard.enter_context(work.key.running())
        ongoing = Ongoing(self.recordings.begin())
        ongoing.task = asyncio.create_task(self._run(ongoing.recording, dict(scope), guard, frames, ended))
        self._tasks.add(ongoing.task)
        ongoing.task.add_done_callback(self._tasks.discard)
        return ongoing

    async def _run(
        self, recording: Recording, scope: Scope, guard: ExitStack, frames: AsyncIterator[list[bytes]], ended: Ended
    ) -> None:
        async def record_all() -> None:
            async for several in frames:
                for frame in several:
                    recording.add(frame)

        work: RequestRecord = scope["noria.record"]
        failure: Exception | None = None
        try:
            with self._observing(work, scope), guard:
                work.status = 200
                await while_connected(never, self._expired, record_all())
        except asyncio.CancelledError:
            failure = Unavailable("nobody waited for this answer any more", "stream_ended")
        except Exception as error:
            failure = error
        await ended(failure)

    async def close(self) -> None:
        """End what still runs."""
        if not self._expired.done():
            self._expired.set_result(None)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def detach(scope: Scope) -> RequestRecord:
    """Give the scope a copy of its record, for work that outlives the request. Returns the record of the request."""
    request: RequestRecord = scope["noria.record"]
    scope["noria.record"] = replace(request)
    return request


async def never() -> Any:
    """Wait for a message of a client that sends none and does not leave."""
    await asyncio.get_running_loop().create_future()
