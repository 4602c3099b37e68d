"""Finds the models of a server by their names, and loads and unloads them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from model.errors import NoriaError
from service.access.keys import Key
from service.errors.errors import ModelNotFound, Unavailable
from service.hosting.budget import Budget, NeedOf
from service.hosting.entries import ModelEntry
from service.hosting.hosted import RETRY_SECONDS, HostedModel
from service.observe.model_metrics import Unload
from service.observe.view.feed import ModelState
from service.settings import Settings

log = logging.getLogger("noria.models")

WATCH_SECONDS = 0.5
"""Seconds between two looks at which models have been idle for long."""
Host = Callable[[ModelEntry, Callable[[], None]], HostedModel]
"""Makes a model that is not loaded yet. It calls the function when no request of it is in flight any more."""


class HostedModels:
    """The models by their names. A request that names none means the first.

    `need` plans the memory of a model. No request may name those that are `retiring` any more. `on_failed` is called
    when a model that is not loaded on demand will never serve.
    """

    def __init__(
        self,
        settings: Settings,
        entries: Iterable[ModelEntry],
        host: Host,
        on_failed: Callable[[Exception], None],
        need: NeedOf,
    ) -> None:
        self._host = lambda entry: host(entry, self.note_change)
        self._on_failed = on_failed
        self._hosted = [self._host(entry) for entry in entries]
        self.retiring: set[HostedModel] = set()
        self._several = any(model.entry.on_demand for model in self._hosted)
        self._starting = asyncio.Lock()
        self._started = False
        self._changed = asyncio.Event()
        self.budget = Budget(settings, need, self, self._changed) if self._several else None
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[HostedModel]:
        return iter(self._hosted)

    @property
    def status(self) -> ModelState:
        """Return "ready" once the models of the start are loaded, "failed" if no model can be loaded.

        A server with one model that is not loaded on demand has the state of that model.
        """
        if not self._started:
            return "loading"
        if not self._several:
            return self.first.state
        return "failed" if all(model.state == "failed" for model in self._hosted) else "ready"

    @property
    def first(self) -> HostedModel:
        return self._hosted[0]

    @property
    def holders(self) -> Iterator[HostedModel]:
        """Return the models that have memory, those that end included."""
        return (model for model in (*self._hosted, *self.retiring) if model.reserved)

    def allowed(self, key: Key | None) -> list[HostedModel]:
        names = None if key is None else key.entry.models
        return [model for model in self._hosted if names is None or names & {*model.entry.settings.names}]

    def find(self, name: str | None, key: Key | None) -> HostedModel:
        """Find the model with this name, else the one with an adapter of this name. Raises ModelNotFound."""
        allowed = self.allowed(key)
        own = (model for model in allowed if name is None or name in model.entry.settings.names)
        adapted = (model for model in allowed if name is not None and model.has(name))
        if (model := next(chain(own, adapted), None)) is None:
            raise ModelNotFound(name or "", tuple(name for model in allowed for name in model.names))
        return model

    async def until_loaded(self, model: HostedModel) -> None:
        """Wait until a model serves, and load it if nobody does. Raises Unavailable where that fails or takes too long.

        A model that is not loaded on demand is left as it is: its admission refuses the request.
        """
        if model.admission.model is not None or not model.entry.on_demand:
            return
        seconds, clock = model.load_timeout, asyncio.get_running_loop().time
        deadline = clock() + seconds
        with model.calling():
            while model.admission.model is None:
                work = model.unloading or self.begin_load(model)
                timeout = deadline - clock()
                done, _ = await asyncio.wait((work, model.gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                model.check_present()
                if not done:
                    waits = model.waits_for_memory and self.budget
                    why = waits.lack(model) if waits else model.client.stage
                    message = f"the model {model.name} was not loaded within {seconds:g} s ({why})"
                    raise Unavailable(message, "model_loading", RETRY_SECONDS)
                work.result()

    async def load(self, model: HostedModel) -> None:
        """Load a model as `until_loaded` does, but go on when the caller is cancelled."""
        task = self._spawn(self.until_loaded(model))
        task.add_done_callback(_take_error)
        await asyncio.shield(task)

    def begin_load(self, model: HostedModel) -> "asyncio.Task[None]":
        """Return the task that loads a model, and begin it if nobody has. Both raise Unavailable."""
        model.check_loadable()
        if model.loading is None:
            model.loading = asyncio.create_task(self._load(model), name=f"load-{model.name}")
            model.loading.add_done_callback(_take_error)
        return model.loading

    async def bring_up(self) -> None:
        """Load the models that are loaded at the start, and watch for idle ones."""
        await self._load_those_at_start()
        self._started = True
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for model in self._hosted:
                if model.is_due:
                    self._spawn(self.unload(model, "idle"))

    async def _load_those_at_start(self) -> None:
        """Load them one after the other, because each must fit beside those before it."""
        async with self._starting:
            for model in self._hosted:
                if model.entry.at_start and model.admission.model is None and model.failure is None:
                    await self._load_at_start(model)

    async def _load_at_start(self, model: HostedModel) -> None:
        if not model.entry.on_demand:
            await self.begin_load(model)
        elif self.budget is None or await self.budget.fits(model):
            with suppress(Unavailable):  # the log has it
                await self.until_loaded(model)
        elif not self.retiring:  # else their end comes back to it
            log.warning("the model does not fit beside the others, and is loaded when it is used", extra=_about(model))

    async def _load(self, model: HostedModel) -> None:
        """Load a model once there is memory for it, unless no caller is left by then. Raises Unavailable."""
        try:
            if self.budget is not None and not await self.budget.reserve(model):
                return
            async with asyncio.timeout(model.load_timeout if model.entry.on_demand else None):
                await model.load()
        except Unavailable as error:
            log.warning("the model is not loaded: %s", error.message, extra=_about(model))
            raise
        except Exception as error:
            if not model.entry.on_demand:
                raise
            late = NoriaError("it took longer than --load-timeout")
            await self._fail(model, late if isinstance(error, TimeoutError) else error)
            raise model.refusal() from error
        finally:
            model.loading, model.waits_for_memory = None, False
            self.note_change()
        self._spawn(self._supervise(model))

    async def _supervise(self, model: HostedModel) -> None:
        """Wait as long as an engine of the model serves or is replaced. Then the model has failed."""
        try:
            await model.client.supervised()
        except Exception as error:
            if model.entry.on_demand:
                await self._fail(model, error)
            else:
                self._on_failed(error)

    async def _fail(self, model: HostedModel, error: Exception) -> None:
        await model.fail(error)
        unexpected = None if isinstance(error, NoriaError) else error
        log.error("the model cannot be served: %s", error, extra=_about(model), exc_info=unexpected)
        self.note_change()

    async def unload(self, model: HostedModel, reason: Unload) -> None:
        """Unload a model once its running requests have ended; those that come meanwhile wait for the next load."""
        if model.loading is not None:
            await asyncio.wait((model.loading,))
        if model.unloading is None:
            if model.admission.model is None:
                return
            model.unloading = asyncio.create_task(self._unload(model, reason), name=f"unload-{model.name}")
        await asyncio.shield(model.unloading)

    async def _unload(self, model: HostedModel, reason: Unload) -> None:
        served, model.admission.model = model.admission.model, None
        model.idle_seconds = model.entry.idle_seconds
        try:
            while model.admission.in_flight:
                self._changed.clear()
                await self._changed.wait()
            await model.unload(reason)
            log.info("unloaded", extra=_about(model, reason=reason))
        except BaseException:
            model.admission.model = served
            raise
        finally:
            model.unloading = None
            self.note_change()

    def reload(self, entries: Iterable[ModelEntry]) -> None:
        """Serve these models from now on. One whose entry needs no other engine goes on under the new entry.

        Another one that changed, or is gone, gets no new request, and is unloaded once those that run have ended. Those
        that wait for its load raise ModelChanged.
        """
        before = {model.entry.of_engine: model for model in self._hosted}
        self._hosted = [
            before.pop(entry.of_engine).under(entry) if entry.of_engine in before else self._host(entry)
            for entry in entries
        ]
        self.retiring |= {*before.values()}
        for model in before.values():
            model.gone.set_result(None)
            self._spawn(self._retire(model))
        self._spawn(self._load_those_at_start())
        self.note_change()  # a model that waits for memory may be removed

    async def _retire(self, model: HostedModel) -> None:
        if model.loading is not None:
            model.loading.cancel()
        await self.unload(model, "removed")
        model.feed.close()
        await model.client.unload()  # an engine that never loaded it, too
        model.reserve(0)
        self.retiring.discard(model)
        model.metrics.served = any(other.name == model.name for other in (*self._hosted, *self.retiring))
        self.note_change()
        await self._load_those_at_start()

    async def close(self) -> None:
        models = (*self._hosted, *self.retiring)
        tasks = {*self._tasks, *(task for model in models for task in (model.loading, model.unloading) if task)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(model.close() for model in models))

    def note_change(self) -> None:
        """Wake what waits until a model is idle, loaded or unloaded."""
        self._changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _take_error(done: "asyncio.Task[None]") -> None:
    """Keep asyncio from a complaint about an error for which nobody waits any more; the log has it."""
    if not done.cancelled():
        done.exception()


def _about(model: HostedModel, **more: str) -> dict[str, dict[str, str]]:
    """Return the fields of a log line about a model."""
    return {"fields": {"model": model.name, **more}}
