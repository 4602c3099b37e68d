"""The live events of the engine: one task looks at it, as long as anybody listens, and all listeners get the same."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from service.access.keys import Share
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.messages import Stats
from service.engine.picture import Picture
from service.errors.errors import Overloaded
from service.http.sse import PlainEvents
from service.observe.metrics import Metrics
from service.observe.view.event import EngineEvent, Pace, ServiceState, event

INTERVAL = 0.1
"""The least number of seconds between two events."""
IDLE_INTERVAL = 1.0
"""Seconds between two events while nothing changes."""
RATE_SECONDS = 1.0
"""Rates are taken over the latest pictures that are so many seconds apart."""
MAX_LISTENERS = 32
RETRY_SECONDS = 10


class EngineFraming(PlainEvents):
    """Events named `engine`, without a mark at the end."""

    __slots__ = ()
    done = b""

    def engine(self, data: EngineEvent) -> bytes:
        return b"event: engine\n" + self.frame(data)  # type: ignore[arg-type]


class Feed:
    """Events for listeners, who may each read as slowly as they like: an event that is not read in time is lost.

    `status` returns the state of the server. The feed ends once `ended` is done.
    """

    def __init__(
        self, client: EngineClient, metrics: Metrics, status: Callable[[], ServiceState], ended: asyncio.Future[None]
    ) -> None:
        self.framing = EngineFraming()
        self._client = client
        self._metrics = metrics
        self._status = status
        self._ended = ended
        self._listeners = Share()
        self._watching: asyncio.Task[None] | None = None
        self._news: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._looks: deque[Picture] = deque(maxlen=round(RATE_SECONDS / INTERVAL))

    @contextmanager
    def listening(self, tenant: str) -> Iterator[None]:
        """Count a listener of a tenant inside the context. Raises Overloaded if there are too many."""
        if self._listeners.is_full(tenant, MAX_LISTENERS):
            raise Overloaded("clients read the engine's events", self._listeners.total, MAX_LISTENERS, RETRY_SECONDS)
        self._listeners.add(tenant, 1)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="engine-feed")
        try:
            yield
        finally:
            self._listeners.add(tenant, -1)
            if not self._listeners.total:
                self.close()

    def close(self) -> None:
        """Stop looking at the engine."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        self._looks.clear()

    async def frames(self) -> AsyncIterator[bytes]:
        """The frames of the events from now on. It ends with the feed, and raises the error of the task that looks."""
        watching = self._watching or self._ended
        while not self._ended.done():
            news = self._news
            await asyncio.wait((news, self._ended, watching), return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                yield news.result()
            elif watching.cancelled():
                return
            elif watching.done():
                watching.result()

    async def _watch(self) -> None:
        """Publish an event whenever something has changed, and from time to time."""
        loop = asyncio.get_running_loop()
        before: tuple[str, Stats] | None = None
        n_lost, published = self._client.n_lost, loop.time()
        while True:
            now = (self._status(), self._client.stats)
            if self._client.n_lost > n_lost:  # perhaps another engine serves already
                n_lost, before = self._client.n_lost, None
                self._looks.clear()
                self._publish("restarting", Stats(), Picture())
            elif now != before or loop.time() > published + IDLE_INTERVAL:
                picture = await self._look()
                before = (self._status(), self._client.stats)
                published = loop.time()
                self._publish(*before, picture)
            await asyncio.sleep(INTERVAL)

    async def _look(self) -> Picture:
        """A picture of the engine; an empty one while none serves."""
        try:
            picture = await self._client.look()
        except (EngineUnavailable, EngineDied):
            return Picture()
        if not self._looks:  # nobody counted the tokens before the first look
            picture = replace(picture, seconds=0.0, generated=0, prompt=0)
        self._looks.append(picture)
        return picture

    def _publish(self, status: ServiceState, stats: Stats, picture: Picture) -> None:
        frame = self.framing.engine(event(status, stats, picture, self._pace()))
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(frame)

    def _pace(self) -> Pace:
        seconds, generated, prompt = 0.0, 0, 0
        for look in reversed(self._looks):
            if seconds < RATE_SECONDS:
                seconds, generated, prompt = seconds + look.seconds, generated + look.generated, prompt + look.prompt
        seconds = seconds or 1.0
        queued, first_token = self._metrics.latest_waits
        return Pace(generated / seconds, prompt / seconds, first_token, queued)
