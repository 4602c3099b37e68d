"""The end of a server's work: it refuses new requests, and waits for those in flight."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from service.observe.view.feed import ModelState

log = logging.getLogger("noria")


class Drain:
    """The count of requests in flight of all models. `expired` is done at the end of a drain's time."""

    def __init__(self, timeout: float) -> None:
        self.draining = False
        self.expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timeout = timeout
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def over(self, state: ModelState) -> ModelState:
        """Return the state of a model, or "draining" from the begin of the drain on."""
        return "draining" if self.draining else state

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def drain(self, n_waiting: int) -> None:
        """Refuse new requests and wait for those in flight. Those that run longer get an error. Log how it ended.

        `n_waiting` requests wait until their model is loaded: they get an error in any case.
        """
        self.draining, n_requests = True, self._in_flight
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._timeout)
        cut_off = self._in_flight + n_waiting
        fields = {"finished": n_requests - self._in_flight, "cut_off": cut_off}
        log.log(logging.WARNING if cut_off else logging.INFO, "the drain has ended", extra={"fields": fields})
        if not self.expired.done():
            self.expired.set_result(None)
