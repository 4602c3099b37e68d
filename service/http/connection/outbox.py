"""What leaves on a connection, and the time in which the client must read it."""

import asyncio
from collections.abc import Callable

from service.http.connection.deadline import Deadline

BUFFER_BYTES = 2**16
"""Bytes that wait in the transport before writers pause."""


class Outbox:
    """Writes to the client. It calls `late` when a full buffer does not drain in `seconds`.

    Writers wait for `drained` while the buffer of the transport is full, so what a client has to read in this time is
    at most that buffer (64 KiB) and one piece of a response.
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
        """The buffer is full."""
        self.drained = self.drained or asyncio.get_running_loop().create_future()
        self._deadline.set(self._seconds)

    def resume(self) -> None:
        """The client has read most of the buffer."""
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
        """The connection is gone."""
        self.resume()
        self._deadline.close()
