"""The requests in flight by their ids, and the latest that have ended."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from service.access.record import RequestRecord
from service.engine.client import EngineClient
from service.engine.forecast import Forecast, Waits
from service.engine.picture import Picture
from service.errors.errors import Cancelled, Unavailable
from service.generation.generation import Generation

T = TypeVar("T")

MAX_ENDED = 256
"""Requests that are remembered after their end."""
LOOK_INTERVAL = 0.05
"""The least number of seconds between two looks at the engine for the sake of single requests."""
FORECAST_SECONDS = 1.0
"""The least number of seconds between two forecasts of waiting times."""
LOOK_SECONDS = 5.0
"""Seconds that a client waits for a look."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request in flight. `generation` is set once it is tokenized.

    `has_reason`: its API has a finish reason for requests that are cut short. Others end with an error.
    """

    record: RequestRecord
    has_reason: bool
    generation: Generation | None = None
    cancelled: bool = False

    def begin(self, generation: Generation) -> None:
        """Take the generation. If the request is cancelled already, so is the generation."""
        self.generation = generation
        if self.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """End all choices. A request that is not tokenized yet ends as soon as it is."""
        self.cancelled = True
        if self.generation is not None:
            self.generation.cancel(None if self.has_reason else Cancelled())


class LiveRequests:
    """All requests in flight. A key finds its own only. Several may have the same id, which clients may choose."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._live: dict[tuple[str, str], list[LiveRequest]] = {}
        self._ended: OrderedDict[tuple[str, str], RequestRecord] = OrderedDict()
        self._ids: set[int] = set()
        self._look: asyncio.Task[Picture] | None = None
        self._forecast: Forecast | None = None
        self._forecast_at = -math.inf  # when its outlook was that of the engine
        self._replay: asyncio.Task[None] | None = None

    @contextmanager
    def serving(self, record: RequestRecord, *, has_reason: bool) -> Iterator[LiveRequest]:
        """A request, which is in flight inside the context."""
        key = (record.owner, record.id)
        live = LiveRequest(record, has_reason)
        self._live.setdefault(key, []).append(live)
        try:
            yield live
        finally:
            self._live[key].remove(live)
            if not self._live[key]:
                del self._live[key]
            self._ended[key] = record
            self._ended.move_to_end(key)
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def find(self, owner: str, request_id: str) -> list[LiveRequest]:
        """The owner's requests in flight with this id, the oldest first."""
        return [*self._live.get((owner, request_id), ())]

    def ended(self, owner: str, request_id: str) -> RequestRecord | None:
        """The record of the latest request with this id that has ended, if it is remembered."""
        return self._ended.get((owner, request_id))

    async def look(self, ids: Collection[int]) -> Picture:
        """What the engine knows of these sequences, and of others. Many calls at a time are one look.

        Raises EngineUnavailable, EngineDied or Unavailable.
        """
        self._ids.update(ids)
        if self._look is None:
            self._look = _shared(self._look_soon())
        return await _soon(self._look)

    async def waits(self, ids: Collection[int]) -> Waits:
        """The estimated waits of these sequences, by a forecast for all that is made at most once a second.

        A sequence that came later waits for the next one. Raises as `look`.
        """
        now = time.monotonic()
        if self._forecast is None or now > self._forecast_at + FORECAST_SECONDS or not self._forecast.knows(ids):
            if self._replay is None:
                self._replay = _shared(self._replay_soon())
            await _soon(self._replay)
        assert self._forecast is not None
        return self._forecast.waits(ids, time.monotonic() - self._forecast_at)

    async def _look_soon(self) -> Picture:
        await asyncio.sleep(LOOK_INTERVAL)
        ids, self._ids, self._look = self._ids, set(), None
        return await self._client.look(sorted(ids))

    async def _replay_soon(self) -> None:
        try:
            await asyncio.sleep(self._forecast_at + FORECAST_SECONDS - time.monotonic())
            outlook = (await self._client.look(outlook=True)).outlook
            assert outlook is not None
            self._forecast_at = time.monotonic()
            self._forecast = await asyncio.to_thread(Forecast, outlook)
        finally:
            self._replay = None


def _shared(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task for several that ask. If none of them waits any more, nobody hears of its error."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _soon(task: asyncio.Task[T]) -> T:
    """The result of a shared task. Raises Unavailable if it takes long."""
    try:
        return await asyncio.wait_for(asyncio.shield(task), LOOK_SECONDS)
    except TimeoutError:
        message = f"the engine is in a step that takes more than {LOOK_SECONDS:g} s; try again"
        raise Unavailable(message, "engine_busy") from None
