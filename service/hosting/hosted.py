"""One model of a server: its engine, its admission, and whether it is loaded."""

import asyncio
import gc
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from model.errors import NoriaError
from service.access.keys import Share
from service.engine.client import EngineClient
from service.errors.errors import Overloaded, Unavailable
from service.generation.served import ServedModel
from service.hosting.admission import Admission
from service.hosting.drain import Drain
from service.hosting.entries import ModelEntry
from service.hosting.memory import Need
from service.model_settings import LOAD_TIMEOUT
from service.observe.model_metrics import ModelMetrics, Unload
from service.observe.view.feed import Feed, ModelState
from service.observe.view.live import WaitReason
from service.receipts.keys import SigningKey
from service.receipts.maker import ReceiptMaker
from service.settings import Settings

Loader = Callable[[Settings, EngineClient], Awaitable[ServedModel]]
"""A function that loads the tokenizer and the network of `Settings.model`."""
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s'\"/]+/)*")
"""The folders of a path, which clients do not need to know."""
RETRY_SECONDS = 10
"""Seconds after which a client may try again where nobody knows how long a model takes."""
BACKOFF_SECONDS = (2.0, 60.0)
"""Seconds from a failed load to the next attempt: after the first failure, and at most. Each failure doubles them."""


def public_reason(error: Exception) -> str:
    """Return the part of an error that clients may read: no folders of the server, of an unexpected one its type."""
    reason = str(error) if isinstance(error, NoriaError) else f"internal error: {type(error).__name__}"
    return FOLDERS.sub("", reason)


class ModelChanged(Unavailable):
    """The model was removed while the request waited for its load. Another one may have its name now."""


class HostedModel:
    """A model of the server. `need` is the memory that it takes by its plan, None before the plan is made.

    `reserved` is the part of the budget that it has, and it `waits_for_memory` until it has one. `waiting` counts the
    requests that wait until it is loaded. `n_callers` counts all callers of its load: these requests, the start, and
    clients that load models. `idle_seconds` is that of its entry, until a client says another number; that number holds
    until the model is unloaded. `gone` is done once it is removed, and takes no new request. `failure` says why the
    latest load failed. `on_idle` is called when no request is in flight any more. Receipts are signed with `key`.
    """

    def __init__(
        self,
        entry: ModelEntry,
        client: EngineClient,
        metrics: ModelMetrics,
        drain: Drain,
        load: Loader,
        on_idle: Callable[[], None],
        key: SigningKey | None = None,
    ) -> None:
        self.entry = entry
        self.client = client
        self.metrics = metrics
        self.admission = Admission(entry.settings, client, drain, lambda: self.state, self._note_idle)
        self.receipts = ReceiptMaker(key, always=entry.settings.receipts)
        self.feed = Feed(client, metrics, lambda: drain.over(self.state), drain.expired)
        self.need: Need | None = None
        self.reserved = 0
        self.waits_for_memory = False
        self.gone = asyncio.get_running_loop().create_future()
        self.idle_seconds = entry.idle_seconds
        self.failure: str | None = None
        self.waiting = Share()
        self.n_callers = 0
        self.created = int(time.time())
        self.last_used = time.monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self._load = load
        self._on_idle = on_idle
        self._failed_at = 0.0
        self._n_failures = 0
        metrics.served = True
        metrics.stats = lambda: client.stats
        metrics.waiting = lambda: self.admission.backlog.tokens.total
        metrics.loading = lambda: 0 if self.waits_for is None else self.waiting.total
        metrics.adapters.names = lambda: self.admission.adapters.numbered

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def removed(self) -> bool:
        return self.gone.done()

    @property
    def load_timeout(self) -> float:
        return self.entry.settings.load_timeout or LOAD_TIMEOUT

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.entry.settings.names, *self.admission.adapters.names)

    def has(self, name: str) -> bool:
        return name in self.entry.settings.names or self.admission.adapters.find(name) is not None

    @property
    def state(self) -> ModelState:
        if self.admission.model is not None:
            return "ready" if self.client.state == "ready" else "restarting"
        if self.unloading is not None:
            return "draining"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.failure is None else "failed"

    @property
    def waits_for(self) -> WaitReason | None:
        """Return what its requests wait for before they are tokenized."""
        if self.admission.model is not None:
            return None
        return "memory" if self.waits_for_memory else "loading"

    @property
    def wait(self) -> str:
        """Return what its requests wait for, in words."""
        if self.waits_for_memory:
            return "memory for its model"
        loads = self.client.state in ("starting", "loading") and self.client.load_began
        return "its model" + (f", which has been loading for {time.monotonic() - loads:.0f} s" if loads else "")

    @property
    def busy(self) -> bool:
        """Return whether a request runs or waits, for the engine or until the model is loaded."""
        return bool(self.admission.in_flight or self.waiting.total)

    @property
    def can_go(self) -> bool:
        """Return whether it may be unloaded for another model."""
        return not (self.entry.pinned or self.busy) and self.state in ("ready", "restarting")

    @property
    def is_due(self) -> bool:
        """Return whether it has been idle for so long that it is to be unloaded."""
        if self.idle_seconds is None or self.state != "ready" or self.busy:
            return False
        return time.monotonic() >= self.last_used + self.idle_seconds

    @contextmanager
    def counted_waiting(self, tenant: str) -> Iterator[None]:
        """Count a request that needs the model inside the context, so that nobody unloads it. Raises Overloaded."""
        limit = self.entry.settings.max_queue
        if self.admission.model is None and self.waiting.is_full(tenant, limit):
            what = f"requests wait until {self.name} is loaded"
            raise Overloaded(what, self.waiting.total, limit, int(BACKOFF_SECONDS[0]), "--max-queue")
        self.waiting.add(tenant, 1)
        try:
            yield
        finally:
            self.waiting.add(tenant, -1)
            if not self.busy:
                self._note_idle()

    def reserve(self, n_bytes: int) -> None:
        """Take this part of the budget in place of what it has."""
        self.metrics.memory += n_bytes - self.reserved
        self.reserved = n_bytes

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count a caller of the load inside the context. The load waits for memory only while it has callers."""
        self.n_callers += 1
        try:
            yield
        finally:
            self.n_callers -= 1
            self._on_idle()

    async def load(self) -> None:
        """Load the model and wait until it serves. Raises NoriaError."""
        settings = self.entry.settings
        if self.need is not None:
            settings = replace(settings, cache_memory=self.need.cache)
        try:
            served = await self._load(settings, self.client)
        except BaseException:
            if not self.removed:
                self.metrics.observe_load("error")
            raise
        self.metrics.describe(served.info)
        self.metrics.observe_load("ok")
        self.receipts.begin(served)
        self.failure, self._n_failures = None, 0
        self.last_used = time.monotonic()
        self.admission.model = replace(served, names=self.entry.settings.names)  # it may be another entry now

    def under(self, entry: ModelEntry) -> Self:
        """Take another entry, which needs no other engine; returns the model."""
        if entry.idle_seconds != self.entry.idle_seconds:
            self.idle_seconds = entry.idle_seconds
        self.entry = entry
        if self.admission.model is not None:
            self.admission.model = replace(self.admission.model, names=entry.settings.names)
        return self

    async def unload(self, reason: Unload) -> None:
        """End the engine, and forget tokenizer and templates. Requests that come meanwhile load the model again."""
        self.admission.model = None
        await self.client.unload()
        self.receipts.forget()
        self.metrics.observe_unload(reason)
        self.reserve(0)
        gc.unfreeze()  # `load_served` has frozen the text side of each model
        gc.collect()
        gc.freeze()

    async def fail(self, error: Exception) -> None:
        """Give up the engine after an error that loading or supervision raised. The next load waits for a while."""
        self.failure = public_reason(error)
        self.metrics.journal.note("failure", self.failure, model=self.name)
        self._n_failures += 1
        self._failed_at = time.monotonic()
        self.admission.model = None
        self.idle_seconds = self.entry.idle_seconds
        await self.client.unload()
        self.reserve(0)

    def check_present(self) -> None:
        """Raise ModelChanged if the model was removed."""
        if self.removed:
            raise ModelChanged(f"the model {self.name} was changed; try again", "model_loading", RETRY_SECONDS)

    def check_loadable(self) -> None:
        """Raise Unavailable if the model was removed, or if the latest load failed a moment ago."""
        self.check_present()
        if self.failure is not None and self._pause > 0:
            raise self.refusal()

    def refusal(self) -> Unavailable:
        """Return the error of a request after a load that failed. It says when the model may be loaded again."""
        message = f"the model {self.name} could not be loaded: {self.failure}"
        return Unavailable(message, "model_failed", max(1, round(self._pause)))

    @property
    def _pause(self) -> float:
        """Return the seconds until the next attempt after a failed load."""
        least, most = BACKOFF_SECONDS
        return self._failed_at + min(least * 2 ** (self._n_failures - 1), most) - time.monotonic()

    async def close(self) -> None:
        self.feed.close()
        await self.client.close()

    def _note_idle(self) -> None:
        self.last_used = time.monotonic()
        self._on_idle()
