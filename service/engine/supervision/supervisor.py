"""The supervisor: it runs one engine after the other, until it has to give up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from model.errors import NoriaError
from service.engine.messages import FromEngine, LoadModel
from service.engine.supervision.connection import EngineConnection, Patience
from service.engine.supervision.process import EngineProcess
from service.engine.supervision.zygote import backoff

log = logging.getLogger("noria.engine")

MAX_FAILED_LOADS = 5
"""Engines in a row that end before they have loaded the model. The next one would do no better."""

Options = Mapping[str, Any]
OnRestart = Callable[[str, str], None]
"""Hears why an engine ended, and the stacks of its threads where it could write them."""

# How an engine dies, and how the next one serves:
# 1. The wire closes (`EngineConnection.connection_lost`), or its `watch` finds the engine stopped, silent or stuck.
# 2. `Supervisor._run_engine` calls `on_end`: `EngineClient._lose_engine` sets the state to "restarting" and fails every
#    look and load of an adapter with EngineDied. Then it kills the process and waits for its end.
# 3. `Submitted.lose_engine` lets each sequence that may go on wait. The others fail with EngineDied.
# 4. `Supervisor.run` gives up, or sleeps for `backoff` and lets the zygote fork a new process.
# 5. `LoadModel` carries the options of `renew` (`service/generation/startup.py`) and the adapters whose files are the
#    same as before (`service/generation/adapters.py`).
# 6. At `Ready` the client sets the state to "ready" (`_welcome`). `Submitted.go_on` submits what waits, with its output
#    so far.


class Supervisor:
    """The runner of engines. `current` loads or serves. `take` gets its messages, `on_end` is called at its end.

    If the first engine cannot load the model, nothing will. A later engine that ends is replaced until one serves
    again, or `MAX_FAILED_LOADS` have failed in a row. An engine that the machine cannot even start is tried again
    without end. The log has the model's `name`.
    """

    def __init__(
        self,
        new_engine: Callable[[], EngineProcess],
        take: Callable[[FromEngine], None],
        on_end: Callable[[], None],
        patience: Patience,
        name: str = "",
    ) -> None:
        self._about = {"fields": {"model": name}}
        self._name = name
        self._new_engine = new_engine
        self._take = take
        self._on_end = on_end
        self._patience = patience
        self.current: EngineConnection | None = None

    async def run(self, options: Callable[[], Awaitable[Options]], on_restart: OnRestart) -> NoReturn:
        """Run engines, each with what `options` gives for it. Raises NoriaError to give up."""
        served, failures, failed_loads = False, 0, 0
        while True:
            ending = await self._run_engine(options)
            served = served or ending.loaded
            if not served:
                raise NoriaError(ending.failure or f"the engine ended while loading the model ({ending.how})")
            failures = 0 if ending.loaded else failures + 1
            failed_loads = 0 if ending.loaded else failed_loads + ending.started
            reason = ending.failure or ending.how
            if failed_loads == MAX_FAILED_LOADS:
                raise NoriaError(
                    f"{MAX_FAILED_LOADS} engines in a row could not load the model; the last one: {reason}"
                )
            _guarded(partial(on_restart, reason, ending.stacks))
            log.error("the engine is gone (%s); starting a fresh one", reason, extra=self._about)
            await asyncio.sleep(backoff(failures))

    async def close(self) -> None:
        """End the engine, once `run` has ended."""
        if self.current is not None:
            await self.current.stop()

    async def _run_engine(self, options: Callable[[], Awaitable[Options]]) -> "EngineEnd":
        """Run one engine from its start to its end. An error in this code must not end the supervision."""
        failure, stacks = None, ""
        try:
            self.current = connection = EngineConnection(engine := self._new_engine())
            await connection.open()
            connection.load(LoadModel(dict(await options()), self._patience.step, self._name), self._take)
            if (failure := await connection.watch(self._patience)) is not None:
                log.error("%s; killing it", failure, extra=self._about)
                stacks = await engine.stacks()
        except NoriaError as error:
            failure = str(error)
        except Exception as error:
            log.exception("the service cannot go on with this engine")
            failure = f"{type(error).__name__}: {error}"
        _guarded(self._on_end)
        ended, self.current = self.current, None
        if ended is None:
            return EngineEnd(False, False, failure, "never started", "")
        how = await ended.close()
        return EngineEnd(ended.started, ended.ready, ended.failure or failure, how, stacks or await engine.stacks())


class EngineEnd(NamedTuple):
    """The end of an engine: whether its process had started and its model was loaded, why it ended, how, and where."""

    started: bool
    loaded: bool
    failure: str | None
    how: str
    stacks: str


def _guarded(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("internal error at the end of an engine")
