"""A timer that may be set often and cheaply."""

import asyncio
from collections.abc import Callable


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
        """Nothing is due."""
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
