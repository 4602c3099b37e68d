"""The requests in flight by their ids, and the latest that have ended."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.access.record import RequestRecord
from service.engine.client import EngineClient
from service.engine.picture import Picture
from service.errors.errors import Cancelled, Unavailable
from service.generation.generation import Generation

MAX_ENDED = 256
"""Requests that are remembered after their end."""
LOOK_INTERVAL = 0.05
"""The least number of seconds between two looks at the engine for the sake of single requests."""
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
            self._look = asyncio.ensure_future(self._look_soon())
            self._look.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits
        try:
            return await asyncio.wait_for(asyncio.shield(self._look), LOOK_SECONDS)
        except TimeoutError:
            message = f"the engine is in a step that takes more than {LOOK_SECONDS:g} s; try again"
            raise Unavailable(message, "engine_busy") from None

    async def _look_soon(self) -> Picture:
        await asyncio.sleep(LOOK_INTERVAL)
        ids, self._ids, self._look = self._ids, set(), None
        return await self._client.look(sorted(ids))
