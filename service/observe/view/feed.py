"""The live events of the engine: one task looks at it, as long as anybody listens, and all listeners get the same."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.access.keys import Share
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.messages import Stats
from service.engine.picture import Picture, PoolPages, SequenceShape, StepRows
from service.errors.errors import Overloaded
from service.http.sse import PlainEvents
from service.observe.model_metrics import ModelMetrics

ModelState = Literal["unloaded", "failed", "loading", "draining", "restarting", "ready"]
"""The states of a model, from nothing to serving. From "restarting" on it has a tokenizer, and takes requests."""
INTERVAL = 0.1
"""The least number of seconds between two events."""
IDLE_INTERVAL = 1.0
"""Seconds between two events while nothing changes."""
RATE_SECONDS = 1.0
"""Rates are taken over so many seconds, or a little more."""
MAX_LISTENERS = 32
RETRY_SECONDS = 10


class Prefix(TypedDict):
    """Prompt tokens that were looked up in the prefix cache, found there, and of these read from the disk."""

    queried: int
    hit: int
    disk: int


class Drafts(TypedDict):
    proposed: int
    accepted: int
    drafters: list[str]


class EngineEvent(TypedDict):
    """The data of an event `engine`. Totals begin with the engine. Rates are of the last second."""

    time: float
    state: ModelState
    trouble: str | None
    running: int
    waiting: int
    tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_seconds: float | None
    queue_seconds: float | None
    preemptions: int
    prefix: Prefix
    drafts: Drafts
    pools: tuple[PoolPages, ...]
    steps: tuple[StepRows, ...]
    sequences: tuple[SequenceShape, ...]
    left_out: int


class EngineFraming(PlainEvents):
    """Events named `engine`, without a mark at the end."""

    __slots__ = ()
    done = b""

    def engine(self, data: EngineEvent) -> bytes:
        return b"event: engine\n" + self.frame(data)  # type: ignore[arg-type]


class Feed:
    """Events for listeners, who may each read as slowly as they like: an event that is not read in time is lost.

    `status` returns the state of the model, or of a server that drains. The feed ends once `ended` is done.
    """

    def __init__(
        self, client: EngineClient, metrics: ModelMetrics, status: Callable[[], ModelState], ended: asyncio.Future[None]
    ) -> None:
        self.framing = EngineFraming()
        self._client = client
        self._metrics = metrics
        self._status = status
        self._ended = ended
        self._listeners = Share()
        self._watching: asyncio.Task[None] | None = None
        self._news: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._seen: deque[tuple[float, Stats]] = deque(maxlen=round(RATE_SECONDS / INTERVAL) + 1)  # by time

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
        self._seen.clear()

    async def frames(self, ends: Callable[[], bool] = lambda: False) -> AsyncIterator[tuple[bytes]]:
        """Yield the frames of the events until the feed ends or `ends` says so. Raises the error of `_watch`."""
        watching = self._watching or self._ended
        while not self._ended.done() and not ends():
            news = self._news
            await asyncio.wait((news, self._ended, watching), return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                yield (news.result(),)
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
                self._seen.clear()
                self._publish("restarting", Stats(), Picture())
            elif now != before or loop.time() > published + IDLE_INTERVAL:
                picture = await self._look()
                if self._client.n_lost > n_lost:
                    continue
                before = (self._status(), self._client.stats)
                published = loop.time()
                self._seen.append((published, self._client.stats))
                self._publish(*before, picture)
            await asyncio.sleep(INTERVAL)

    async def _look(self) -> Picture:
        """Return a picture of the engine; an empty one while none serves."""
        try:
            return await self._client.look()
        except (EngineUnavailable, EngineDied):
            return Picture()

    def _publish(self, status: ModelState, stats: Stats, picture: Picture) -> None:
        generated, prompt = self._rates()
        queued, first_token = self._metrics.latest_waits
        event: EngineEvent = {
            "time": round(time.time(), 3),
            "state": status,
            "trouble": self._metrics.journal.trouble,
            "running": stats.running,
            "waiting": stats.waiting,
            "tokens_per_second": round(generated, 2),
            "prompt_tokens_per_second": round(prompt, 2),
            "ttft_seconds": _rounded(first_token),
            "queue_seconds": _rounded(queued),
            "preemptions": stats.preemptions,
            "prefix": {"queried": stats.queried_tokens, "hit": stats.hit_tokens, "disk": stats.disk_tokens},
            "drafts": {
                "proposed": stats.drafts("drafted"),
                "accepted": stats.drafts("accepted"),
                "drafters": stats.drafters,
            },
            "pools": stats.pools,
            "steps": picture.steps,
            "sequences": picture.sequences,
            "left_out": picture.left_out,
        }
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(self.framing.engine(event))

    def _rates(self) -> tuple[float, float]:
        """Return the tokens that were generated, and those of prompts, in a second."""
        if not self._seen:
            return 0.0, 0.0
        now, stats = self._seen[-1]
        before = (seen for seen in reversed(self._seen) if seen[0] <= now - RATE_SECONDS)
        then, old = next(before, self._seen[0])
        seconds = now - then or 1.0
        generated, prompt = stats.generated_tokens - old.generated_tokens, stats.prompt_tokens - old.prompt_tokens
        return generated / seconds, prompt / seconds


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
