"""The events of streams that outlive their connections: numbered, held for a while, and read by whoever comes."""

import asyncio
from collections.abc import AsyncIterator

from service.errors.errors import InvalidRequest

MAX_FRAMES = 256
"""As many events are sent in one piece to a reader that is behind."""


class Recording:
    """The events of one stream, numbered from 0. Readers get those after a number, then follow until the end.

    `frames` are the bytes of the events from number `first` on. If the stream ends with an error, readers get the
    events before it, and then the error.
    """

    def __init__(self, recordings: "Recordings") -> None:
        self.frames: list[bytes] = []
        self.first = 0
        self.n_bytes = 0
        self.ended = False
        self._failure: Exception | None = None
        self._grown = asyncio.Event()
        self._recordings = recordings

    @property
    def n_events(self) -> int:
        """Return the number of events so far, with those that were dropped."""
        return self.first + len(self.frames)

    def add(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.n_bytes += len(frame)
        self._recordings.count(len(frame))
        self._wake()

    def end(self, failure: Exception | None = None) -> None:
        self.ended, self._failure = True, failure
        self._wake()

    async def read(self, after: int) -> AsyncIterator[list[bytes]]:
        """Yield the events after number `after`, in pieces of several. Raises InvalidRequest for dropped ones."""
        at = after + 1
        while True:
            if at < self.first:
                raise InvalidRequest(f"the events before number {self.first} were dropped", code="events_dropped")
            if frames := self.frames[at - self.first : at - self.first + MAX_FRAMES]:
                at += len(frames)
                yield frames
            elif not self.ended:
                await self._grown.wait()
            elif self._failure is not None:
                raise self._failure
            else:
                return

    def find(self, beginning: bytes) -> int | None:
        """Return the number of the event that begins with these bytes; None if there is none, or it was dropped."""
        found = (at for at, frame in enumerate(self.frames, self.first) if frame.startswith(beginning))
        return next(found, None)

    def drop(self, n_bytes: int) -> None:
        """Drop the oldest events: at least so many bytes, or all."""
        before, n = self.n_bytes, 0
        while n < len(self.frames) and before - self.n_bytes < n_bytes:
            self.n_bytes -= len(self.frames[n])
            n += 1
        del self.frames[:n]
        self.first += n
        self._recordings.n_bytes -= before - self.n_bytes

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


class Recordings:
    """All recordings. Together they have at most `limit` bytes: the largest one drops its oldest events."""

    def __init__(self, limit: int) -> None:
        self.n_bytes = 0
        self._limit = limit
        self._all: set[Recording] = set()

    def begin(self) -> Recording:
        recording = Recording(self)
        self._all.add(recording)
        return recording

    def forget(self, recording: Recording) -> None:
        if recording in self._all:
            self._all.remove(recording)
            self.n_bytes -= recording.n_bytes

    def count(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        while self.n_bytes > self._limit:
            largest = max(self._all, key=lambda recording: recording.n_bytes)
            largest.drop(self.n_bytes - self._limit + self._limit // 16)
