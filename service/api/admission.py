"""Admission of requests (queue bound, loading, draining), and the state that all endpoints share."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from service.engine.client import EngineClient
from service.generation.served import ServedModel
from service.http.errors import ModelNotFound, Overloaded, Unavailable
from service.metrics import Metrics
from service.settings import Settings
from service.structured.trial import Grammars

T = TypeVar("T")


class Admission:
    """Decides on the event loop which requests the server takes.

    `model` is set once it is loaded. `expired` is done at the end of a drain's time.
    """

    def __init__(self, settings: Settings, client: EngineClient) -> None:
        self.model: ServedModel | None = None
        self.in_flight = 0
        self.draining = False
        self.expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._client = client
        self._max_queue = settings.max_queue
        self._drain_timeout = settings.drain_timeout
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noria-tokenize")
        self._tokenizing.submit(int)  # start the thread now: later the system may allow no more threads

    @property
    def ready(self) -> bool:
        return self.model is not None and self._client.state == "ready" and not self.draining

    @property
    def status(self) -> str:
        """ "ready", or why not: "draining", "starting", "loading", "restarting", "failed", "stopped"."""
        if self.draining:
            return "draining"
        return self._client.state if self.model is not None or self._client.state != "ready" else "loading"

    def require(self, name: str | None = None) -> ServedModel:
        """The served model. Raises ModelNotFound for another name, Unavailable while loading."""
        if self.model is None:
            raise Unavailable("the model is still loading; see /ready", "model_loading")
        if name is not None and name not in self.model.names:
            raise ModelNotFound(name, self.model.names)
        return self.model

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request as in flight inside the context. Raises Overloaded or Unavailable."""
        if self.draining:
            raise Unavailable("the server is shutting down", "shutting_down")
        if self.model is None or self._client.state != "ready":
            raise Unavailable(f"the engine is not ready ({self.status}); try again shortly", "engine_unavailable")
        capacity = self.model.info.max_sequences + self._max_queue
        if self.in_flight >= capacity:
            raise Overloaded(capacity)
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def off_loop(self, work: Callable[[], T]) -> T:
        """The result of `work`, which the only tokenizing thread computes."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    async def drain(self) -> None:
        """Refuse new requests and wait for those in flight. Those that run longer get an error."""
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._drain_timeout)
        if not self.expired.done():
            self.expired.set_result(None)

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class State:
    """The state that every endpoint can use, as `app.state.noria`."""

    settings: Settings
    client: EngineClient
    metrics: Metrics
    admission: Admission
    grammars: Grammars
