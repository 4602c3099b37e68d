"""The two directions of a connection: bytes that arrive and leave, and the time that the client has for them."""

import asyncio
from collections.abc import Callable

from service.http.connection.limits import Limits

BUFFER_BYTES = 2**16
"""Bytes that wait in the transport before writers pause."""


class Deadline:
    """Calls `late` once when the time that was set last is over. Its users run on the event loop."""

    def __init__(self, late: Callable[[], None]) -> None:
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._timer: asyncio.Handle | None = None
        self._fires = 0.0  # the timer's time: uvloop's handle of a time that is now cannot tell it

    def set(self, seconds: float) -> None:
        """Start again. A timer that fires earlier stays, and looks at the new time then: most calls only store it."""
        self._due = self._loop.time() + seconds
        if self._timer is not None and self._fires > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._start(self._due)

    def clear(self) -> None:
        """Let nothing be due."""
        self._due = None

    def close(self) -> None:
        """Drop the timer too: the connection is gone."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._due > self._loop.time():
            self._start(self._due)
        else:
            self._due = None
            self._late()

    def _start(self, due: float) -> None:
        self._fires, self._timer = due, self._loop.call_at(due, self._fire)


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


class Outbox:
    """Writes to the client. It calls `late` when a full buffer does not drain in `seconds`.

    Writers wait for `drained` while the buffer of the transport is full: in this time a client has to read at most that
    buffer (64 KiB) and one piece of a response.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float, late: Callable[[], None]) -> None:
        self.drained: asyncio.Future[None] | None = None
        """Done when the client has read enough, or is gone; None while more may be written."""
        transport.set_write_buffer_limits(BUFFER_BYTES)  # that of TLS is 512 KiB
        self.write = transport.write
        self.abort = transport.abort
        self._close = transport.close
        self._seconds = seconds
        self._deadline = Deadline(late)
        self._closing = False

    def pause(self) -> None:
        """Make writers wait: the buffer is full."""
        self.drained = self.drained or asyncio.get_running_loop().create_future()
        self._deadline.set(self._seconds)

    def resume(self) -> None:
        """Let writers go on: the client has read most of the buffer."""
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)
        self.drained = None
        if self._closing:
            self._deadline.set(self._seconds)
        else:
            self._deadline.clear()

    def close(self) -> None:
        """End the connection when the client has read what was written."""
        self._closing = True
        self._deadline.set(self._seconds)
        self._close()

    def lost(self) -> None:
        """Wake the writers: the connection is gone."""
        self.resume()
        self._deadline.close()
