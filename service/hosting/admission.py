"""Admission of the requests to one model: queue bound, loading, draining."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from service.access.keys import Share
from service.access.record import RequestRecord
from service.engine.client import EngineClient
from service.errors.errors import ModelNotFound, Overloaded, Unavailable
from service.generation.adapters import Adapters, given_adapters
from service.generation.served import ServedModel
from service.generation.usage import Backlog
from service.hosting.drain import Drain
from service.observe.view.feed import ModelState
from service.settings import Settings

LOADING = "the model is still loading; see /ready", "model_loading"
RATE_SECONDS = 60.0
"""The window in which the rate of finished requests is measured."""
RATE_SAMPLES = 1024
LONGEST_RETRY = 60


class FinishRate:
    """The requests that finish in a second: measured over the last minute, or since the server was last idle."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy_since = clock()
        self._finished: deque[float] = deque(maxlen=RATE_SAMPLES)

    def begin(self) -> None:
        """Forget the rate before now: the server was idle."""
        self._finished.clear()
        self._busy_since = self._clock()

    def count(self) -> None:
        self._finished.append(self._clock())

    def seconds(self, n_requests: int) -> float:
        """Return the time in which so many requests finish. As long as none has, the first is taken to finish now."""
        now = self._clock()
        since = max(self._busy_since, now - RATE_SECONDS)
        while self._finished and self._finished[0] < since:
            self._finished.popleft()
        if len(self._finished) == RATE_SAMPLES:
            since = self._finished[0]
        return n_requests * (now - since) / max(1, len(self._finished))


class Admission:
    """The admission of requests to a model. It runs on the event loop.

    `model` is set while it is loaded, and `state` returns its state. `backlog` counts what waits for the engine; the
    requests themselves update it. `adapters` are those that requests may name. `on_idle` is called when no request is
    in flight any more.
    """

    def __init__(
        self,
        settings: Settings,
        client: EngineClient,
        drain: Drain,
        state: Callable[[], ModelState],
        on_idle: Callable[[], None],
    ) -> None:
        self.model: ServedModel | None = None
        self.adapters = Adapters(client, given_adapters(settings))
        self._in_flight = Share()
        self.backlog = Backlog()
        self._drain = drain
        self._on_idle = on_idle
        self._state = state
        self._settings = settings
        self._rate = FinishRate()

    @property
    def in_flight(self) -> int:
        return self._in_flight.total

    def require(self, name: str | None = None) -> ServedModel:
        """Return the served model, with the adapter of this name if it is one.

        Raises ModelNotFound for another name, Unavailable while loading.
        """
        if self.model is None:
            raise Unavailable(*LOADING)
        if name is None or name in self.model.names:
            return self.model
        if (adapter := self.adapters.find(name)) is None:
            raise ModelNotFound(name, (*self.model.names, *self.adapters.names))
        return replace(self.model, adapter=adapter)

    @contextmanager
    def admitted(self, record: RequestRecord, name: str | None) -> Iterator[ServedModel]:
        """Count a request as in flight inside the context, and keep the model of this name, with its adapter, for it.

        A request that generates must find space among what waits for the engine, too. Raises ModelNotFound, Overloaded
        or Unavailable.
        """
        with self._counted(record.tenant):
            served = self.require(name)
            if not record.policy.generates:
                yield served
                return
            record.model = name or served.names[0]
            record.adapter = None if served.adapter is None else served.adapter.name
            with nullcontext() if served.adapter is None else self.adapters.using(served.adapter):
                self.check_backlog(record.tenant)
                yield served

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        """Count a request of a tenant as in flight inside the context. Raises Overloaded or Unavailable."""
        if self._drain.draining:
            raise Unavailable("the server is shutting down", "shutting_down")
        if (state := self._state()) == "loading":
            raise Unavailable(*LOADING)
        if state != "ready":
            raise Unavailable(f"the engine is not ready ({state}); try again shortly", "engine_unavailable")
        capacity = self.require().info.max_sequences + self._settings.max_queue
        self._check("requests are running or waiting", self._in_flight, tenant, capacity, "--max-queue")
        if not self.in_flight:
            self._rate.begin()
        self._in_flight.add(tenant, 1)
        try:
            with self._drain.in_flight():
                yield
            self._rate.count()
        finally:
            self._in_flight.add(tenant, -1)
            if not self.in_flight:
                self._on_idle()

    def check_backlog(self, tenant: str) -> None:
        """Raise Overloaded if as many tokens, choices or media wait as may.

        No request is too large for an empty queue.
        """
        limits, queue, media = self._settings, self.backlog, "bytes of decoded images and audio are waiting"
        self._check("prompt tokens are waiting", queue.tokens, tenant, limits.max_queue_tokens, "--max-queue-tokens")
        self._check("choices are waiting", queue.choices, tenant, limits.max_queue_choices, "--max-queue-choices")
        self._check(media, queue.media, tenant, limits.max_queue_media, "--max-queue-media")

    def _check(self, what: str, share: Share, tenant: str, limit: int, name: str) -> None:
        if share.is_full(tenant, limit):
            raise Overloaded(what, share.total, limit, self._retry_after(), name)

    def seconds_to_start(self, place: int) -> float:
        """Estimate when the sequence at this place of the queue starts: once as many requests have finished."""
        return self._rate.seconds(place)

    def _retry_after(self) -> int:
        """Return the seconds until as many requests have finished as wait now, 1 to `LONGEST_RETRY`."""
        running = 0 if self.model is None else self.model.info.max_sequences
        seconds = self._rate.seconds(max(1, self.in_flight - running))
        return min(max(1, math.ceil(seconds)), LONGEST_RETRY)
