"""The service's side of the engine: it submits sequences, and delivers updates to their mailboxes.

It runs on the event loop. Nothing here blocks the loop, because the wire is buffered both ways. The supervisor starts,
watches and replaces engines.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from model.batch import RunnerInfo
from model.errors import ModelError
from model.sampling_params import SamplingParams
from service.engine.mailbox import EngineDied, EngineUnavailable, Mailbox, Restore
from service.engine.messages import (
    AdapterLoaded,
    Beat,
    Follow,
    FromEngine,
    LoadAdapter,
    Loading,
    Look,
    PageChange,
    Ready,
    Report,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from service.engine.picture import Picture
from service.engine.submitted import Submitted
from service.engine.supervision.connection import Patience
from service.engine.supervision.process import EngineProcess
from service.engine.supervision.supervisor import OnRestart, Supervisor

log = logging.getLogger("noria.engine")
T = TypeVar("T")

EngineState = Literal["unloaded", "starting", "loading", "ready", "restarting", "failed", "stopped"]

ENDED = ("unloaded", "stopped")
"""The states in which an engine was ended on purpose."""


class EngineClient:
    """The client of an engine: it submits sequences to the one that serves, and delivers their updates.

    `stage` and `progress` (0..1) describe loading, for which the log has the model's `name`. `info` is set once the
    engine is ready. `adapters` returns the numbers and paths of the LoRA adapters that the next engine reads. `steps`
    returns the latest steps of the engines (`tape.py`). `on_pages` gets the changes of pages, and None when an engine
    begins, with none.

    An engine is replaced if it dies, if a signal stops it, if it sends nothing for `stall_timeout` seconds, or if a
    sequence in it makes no progress for `step_timeout` seconds. Sequences go on with the next engine. Without
    `continues`, a sequence goes on only if its client has no part of the answer yet.
    """

    def __init__(
        self,
        new_engine: Callable[[], EngineProcess],
        *,
        name: str = "",
        step_timeout: float = 60.0,
        stall_timeout: float = 10.0,
        continues: bool = True,
        on_report: Callable[[Report], None] = lambda report: None,
        on_beat: Callable[[Beat], None] = lambda beat: None,
        on_restart: OnRestart = lambda reason, stacks: None,
        on_continue: Callable[[], None] = lambda: None,
        steps: Callable[[], list[Any]] = list,
    ) -> None:
        self._name = name
        self.state: EngineState = "starting"
        self.stage = "starting"
        self.progress = 0.0
        self.info: RunnerInfo | None = None
        self.stats = Stats()
        self.n_lost = 0  # engines that have ended
        self.adapters: Callable[[], Sequence[tuple[int, str]]] = tuple
        self.steps = steps
        self.on_pages: Callable[[Sequence[PageChange] | None, RunnerInfo], None] | None = None
        self._on_report = on_report
        self._on_beat = on_beat
        self._on_restart = on_restart
        self._next_id = 1
        self._loads: dict[int, asyncio.Future[str]] = {}  # adapters that the engine is reading
        self._given = {0}  # adapters that the engine got at its start, and 0 for none
        self._unneeded: list[int] = []  # adapters that the next engine may get all the same
        self._submitted = Submitted(self._send, on_continue, continues=continues, name=name)
        self._looks: deque[asyncio.Future[Picture]] = deque()  # in the order of their pictures
        patience = Patience(step_timeout, stall_timeout)
        self._new_supervisor = partial(Supervisor, new_engine, self._take, self._lose_engine, patience, name)
        self._supervisor = self._new_supervisor()
        self._supervision: asyncio.Task[None] | None = None
        self.load_began, self._load_seconds = 0.0, 0.0
        self._decided = asyncio.Event()  # set while an engine serves, and when none will

    async def start(
        self, options: Mapping[str, Any], renew: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    ) -> None:
        """Load the model with these runner options and wait until the engine serves. Raises NoriaError if it cannot.

        After `unload` it may be called again. `renew` gives the options of each later engine; without it only the
        adapters change.
        """
        self.state, self.load_began = "starting", time.monotonic()
        self._decided.clear()

        async def current() -> Mapping[str, Any]:
            found = options
            if self.info is not None:  # clients know the longest sequence: the next engine must keep it
                renewed = await renew() if renew is not None else options
                found = {**renewed, "max_model_len": self.info.max_model_len}
            adapters = self.adapters()
            self._given = {0, *(number for number, _ in adapters)}
            return {**found, "adapters": adapters}

        self._supervision = asyncio.create_task(self._supervise(current), name="engine-supervisor")
        await self._decided.wait()
        if self.state == "failed":
            await self._supervision

    async def _supervise(self, options: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        try:
            await self._supervisor.run(options, self._on_restart)
        finally:  # it has given up, or nobody needs the engine any more
            self.state = self.state if self.state in ENDED else "failed"
            self._submitted.fail()
            self._decided.set()

    async def supervised(self) -> None:
        """Wait while engines are run. Raises the error that ends that: then no engine will serve any more."""
        if self._supervision is not None:
            await asyncio.shield(self._supervision)

    async def serving(self) -> None:
        """Wait until an engine serves. Raises EngineUnavailable if none will."""
        while self.state != "ready":
            if self.state in ("failed", *ENDED):
                raise EngineUnavailable(f"the engine is {self.state}")
            await self._decided.wait()

    def note(self, stage: str, progress: float) -> None:
        """Record how far loading is, for `/ready`, and log each stage once, whatever it counts."""
        if stage != "ready" and _words(stage) != _words(self.stage):
            log.info("loading", extra={"fields": {"model": self._name, "stage": stage}})
        self.stage, self.progress = stage, progress

    def submit(self, prompt: list[int], params: SamplingParams, **options: Any) -> Mailbox:
        """Queue one sequence. Otherwise as `submit_choices`; the options are fields of `Submit`."""
        return self.submit_choices(Submit(0, prompt, params, **options))[0]

    def submit_choices(self, request: Submit, restore: Restore | None = None) -> list[Mailbox]:
        """Queue the choices of one prompt, under new ids. Returns a mailbox for each.

        `restore` gives the inputs again where they are needed: this side does not hold them. While one engine replaces
        another, the choices wait for it. Raises EngineUnavailable in any other state than ready.
        """
        if self.state != "restarting":
            self._require_ready()
        request = replace(request, id=self._next_id)
        self._next_id += request.n
        return self._submitted.submit(request, restore)

    async def look(self, ids: Sequence[int] = ()) -> Picture:
        """Return a picture of everything in the engine, or of these sequences, after the present step.

        Raises EngineUnavailable unless the engine is ready, EngineDied if it ends before.
        """
        self._require_ready()
        self._looks.append(picture := asyncio.get_running_loop().create_future())
        self._send(Look(list(ids)))
        return await picture

    async def load_adapter(self, number: int, path: str) -> None:
        """Let the engine read a LoRA adapter. Numbers count up from 1; none is used twice.

        Raises ModelError if it cannot serve, EngineUnavailable unless the engine is ready, EngineDied if that ends.
        """
        self._require_ready()
        self._send(LoadAdapter(number, path))
        self._loads[number] = loaded = asyncio.get_running_loop().create_future()
        try:
            problem = await loaded
        except asyncio.CancelledError:
            self.unload_adapter(number)
            raise
        if problem:
            raise ModelError(problem)

    def unload_adapter(self, number: int) -> None:
        """Forget an adapter that no sequence uses. An engine that loads does it once it serves."""
        self._unneeded.append(number)
        if self.state == "ready":
            self._forget_adapters()

    def _forget_adapters(self) -> None:
        unneeded, self._unneeded = self._unneeded, []
        for number in unneeded:
            self._send(UnloadAdapter(number))

    async def close(self) -> None:
        """End the engine; requests still running get EngineDied."""
        await self._end("stopped")

    async def unload(self) -> None:
        """End the engine, or what is left of it after a failure: `start` may follow. No request should be running."""
        await self._end("unloaded")
        self._supervisor, self.info, self.stats = self._new_supervisor(), None, Stats()
        self.stage, self.progress = "unloaded", 0.0

    async def _end(self, state: Literal["stopped", "unloaded"]) -> None:
        self.state = state
        self._submitted.fail()
        self._fail_answers()
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        await self._supervisor.close()

    def _require_ready(self) -> None:
        if self.state != "ready":
            raise EngineUnavailable(f"the engine is {self.state}")

    def _send(self, message: ToEngine) -> None:
        """Write a message to the engine that loads or serves, if there is one."""
        if (engine := self._supervisor.current) is not None:
            engine.send(message)

    def _take(self, message: FromEngine) -> None:
        if self.state in ENDED:  # what an engine says while it ends
            return
        if isinstance(message, Report):
            self.stats = message.stats
            self._on_report(message)
            self._submitted.deliver(message.updates)
            if message.pages and self.on_pages is not None and self.info is not None:
                self.on_pages(message.pages, self.info)
        elif isinstance(message, Beat):
            self._on_beat(message)
        elif isinstance(message, Picture):
            _answer(self._looks.popleft(), message)
        elif isinstance(message, AdapterLoaded):
            _answer(self._loads.pop(message.adapter, None), message.problem)
        elif isinstance(message, Loading):
            self.state = "loading" if self.info is None else "restarting"
            self.note(message.stage, message.progress)
        elif isinstance(message, Ready):
            self._welcome(message.info)

    def _welcome(self, info: RunnerInfo) -> None:
        """Serve with an engine that has loaded its model. Raises ModelError if that is not the model of before."""
        if self.info is not None and self.info.description.get("weights") != info.description.get("weights"):
            raise ModelError("the model's weights have changed since this service started; restart it to serve them")
        self.info, self.state = info, "ready"
        self._load_seconds = time.monotonic() - self.load_began
        self._forget_adapters()
        if self.on_pages is not None:
            self.on_pages(None, info)
            self._send(Follow())
        self.note("ready", 1.0)
        self._decided.set()
        self._submitted.go_on(self._given)

    def _lose_engine(self) -> None:
        """Let no request be submitted until another engine is ready: the present one has ended."""
        if self.info is not None and self.state not in ENDED:
            self.state = "restarting"
            self.note("restarting", 0.0)
        self.stats = Stats()
        self.n_lost += 1
        self.load_began = time.monotonic()
        self._decided.clear()
        self._submitted.lose_engine(self._load_seconds)
        self._fail_answers()

    def _fail_answers(self) -> None:
        """Fail the requests for a picture or an adapter: the engine answers them no more."""
        unanswered: list[asyncio.Future[Any]] = [*self._looks, *self._loads.values()]
        self._looks.clear()
        self._loads.clear()
        for answer in unanswered:
            if not answer.done():
                answer.set_exception(EngineDied())


def _answer(waiting: "asyncio.Future[T] | None", answer: T) -> None:
    """Give an answer of the engine to its caller, who may have gone."""
    if waiting is not None and not waiting.done():
        waiting.set_result(answer)


def _words(stage: str) -> str:
    """Return a stage without its numbers, such as the number of a graph."""
    return "".join(char for char in stage if not char.isdigit())
