"""What arrives on a connection: bytes that wait for the parser, pauses in reading, and the time of a body."""

import asyncio
from collections.abc import Callable

from service.http.connection.deadline import Deadline
from service.http.connection.limits import Limits


class Inbox:
    """Holds the bytes that are not parsed yet. It calls `late` when the client takes longer than a deadline.

    A body has `body_seconds` between two parts, and a total that its size allows. Pauses of the server do not count.
    """

    def __init__(self, transport: asyncio.Transport, limits: Limits, late: Callable[[], None]) -> None:
        self.unread = bytearray()
        self.deadline = Deadline(late)
        self.paused = False
        self._transport = transport
        self._limits = limits
        self._clock = asyncio.get_running_loop().time
        self._paused_at = 0.0
        self._body_began: float | None = None  # None while no body arrives
        self._body_bytes = 0  # known from the head, or received so far
        self._received = 0

    def take(self, n_bytes: int) -> bytes:
        """Remove and return the first bytes, `n_bytes` at most."""
        part = bytes(self.unread[:n_bytes])
        del self.unread[:n_bytes]
        return part

    def begin_body(self, length: int | None) -> None:
        """Give a body its time. `length` is its size, if it is known."""
        self._body_began, self._body_bytes, self._received = self._clock(), length or 0, 0
        self.deadline.set(self._limits.body_seconds)

    def count_body(self, n_bytes: int) -> None:
        """Give the body time for its next part."""
        assert self._body_began is not None
        self._received += n_bytes
        self._body_bytes = max(self._body_bytes, self._received)
        due = self._body_began + self._limits.body_seconds + self._body_bytes / self._limits.body_rate
        self.deadline.set(min(self._limits.body_seconds, max(0.0, due - self._clock())))

    def end_body(self) -> None:
        self._body_began = None
        self.deadline.clear()

    def drop(self) -> None:
        """Forget what has arrived; nobody will parse it."""
        self.unread.clear()
        self.end_body()

    def pause(self) -> None:
        if not self.paused:
            self.paused, self._paused_at = True, self._clock()
            self._transport.pause_reading()
            if self._body_began is not None:
                self.deadline.clear()

    def resume(self) -> None:
        if self.paused and not self._transport.is_closing():
            self.paused = False
            self._transport.resume_reading()
            if self._body_began is not None:
                self._body_began += self._clock() - self._paused_at
                self.deadline.set(self._limits.body_seconds)
