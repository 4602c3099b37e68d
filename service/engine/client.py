"""The service's side of the engine: starts, watches and replaces it, and makes mailboxes. Runs on the event loop.

If the first engine cannot load the model, the service fails. A later engine that ends is replaced until one serves
again. Nothing here blocks the event loop, because the wire is buffered both ways.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from model.batch import RunnerInfo
from model.errors import NoriaError
from model.sampling_params import SamplingParams
from service.engine.mailbox import EngineUnavailable, Mailbox
from service.engine.messages import (
    Abort,
    Beat,
    Failed,
    FromEngine,
    Loading,
    LoadModel,
    Ready,
    Report,
    Stats,
    Submit,
    ToEngine,
)
from service.engine.process import EngineHandle
from service.engine.wire import MessageProtocol, frame

log = logging.getLogger("noria.engine")

WATCH_SECONDS = 0.2
LOADING_STALL_SECONDS = 120.0
"""An import of torch from a cold disk may hold the interpreter for long."""
STOPPED_SECONDS = 1.0
"""Silence after which an engine that a signal has stopped is replaced: it does not continue by itself."""
LONGEST_BACKOFF_SECONDS = 30.0


class EngineClient:
    """Submits sequences to whichever engine serves, and delivers their updates.

    `state` is "starting", "loading", "ready", "restarting", "failed" or "stopped"; `stage` and `progress` (0..1)
    describe loading. `info` is set once the engine is ready.

    The client replaces an engine that dies or is stopped by a signal. It also replaces one that sends nothing for
    `stall_timeout` seconds, or that has work but finishes no step in `step_timeout` seconds. An engine sends beats even
    inside a long step, but a busy machine may delay them.
    """

    def __init__(
        self,
        new_engine: Callable[[], EngineHandle],
        *,
        step_timeout: float = 60.0,
        stall_timeout: float = 10.0,
        on_report: Callable[[Report], None] = lambda report: None,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = "starting"
        self.stage = "starting"
        self.progress = 0.0
        self.info: RunnerInfo | None = None
        self.stats = Stats()
        self._new_engine = new_engine
        self._step_timeout = step_timeout
        self._stall_timeout = stall_timeout
        self._on_report = on_report
        self._on_restart = on_restart
        self._next_id = 1
        self._mailboxes: dict[int, Mailbox] = {}
        self._engine: EngineHandle | None = None
        self._sock: socket.socket | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._stepped = 0.0
        self._failure: str | None = None

    def spawn(self) -> None:
        """Start an engine process; it imports what it needs while the caller continues. Needs no event loop.

        Raises NoriaError if the machine cannot start another process.
        """
        self._engine = self._new_engine()
        try:
            self._sock = self._engine.spawn()
        except OSError as error:
            raise NoriaError(f"the engine process cannot be started: {error.strerror or error}") from error

    async def start(self, options: Mapping[str, Any]) -> None:
        """Load the model with these runner options and wait until the engine serves. Raises NoriaError if it cannot."""
        if self._engine is None:
            self.spawn()
        self._ready = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(dict(options)), name="engine-supervisor")
        await self._ready

    def note(self, stage: str, progress: float) -> None:
        """Record how far loading is, for `/ready`, and log each stage once."""
        if stage not in (self.stage, "ready"):
            log.info("loading", extra={"fields": {"stage": stage}})
        self.stage, self.progress = stage, progress

    def submit(self, prompt: list[int], params: SamplingParams, **options: Any) -> Mailbox:
        """Queue one sequence. Otherwise as `submit_choices`."""
        return self.submit_choices(prompt, params, **options)[0]

    def submit_choices(
        self,
        prompt: list[int],
        params: SamplingParams,
        n: int = 1,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> list[Mailbox]:
        """Queue `n` sequences, the choices of one prompt, which is sent once. Returns a mailbox for each.

        Raises EngineUnavailable unless the engine is ready.
        """
        if self.state != "ready":
            raise EngineUnavailable(f"the engine is {self.state}")
        if not self._mailboxes:
            self._stepped = self._now()
        request = Submit(self._next_id, prompt, params, priority=priority, cache_salt=cache_salt, n=n, tenant=tenant)
        self._next_id += n
        mailboxes = {sequence_id: Mailbox(sequence_id, self._close_mailbox) for sequence_id in request.ids}
        self._mailboxes |= mailboxes
        self._send(request)
        return list(mailboxes.values())

    async def close(self) -> None:
        """End the engine; requests still running get EngineDied."""
        self.state = "stopped"
        self._fail_mailboxes()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._end_engine()
        if self._sock is not None:
            self._sock.close()

    async def _supervise(self, options: dict[str, Any]) -> None:
        """Run one engine after the other; only the first may fail for good."""
        failures = 0
        while True:
            ending = await self._run_engine(options)
            if self._ready is not None and not self._ready.done():
                self.state = "failed"
                self._ready.set_exception(
                    NoriaError(self._failure or f"the engine ended while loading the model ({ending})")
                )
                return
            failures = 0 if self.stage == "ready" else failures + 1
            self.state, self.stage, self.progress = "restarting", "restarting", 0.0
            self.stats = Stats()
            if self.info is not None:  # clients know this limit: the next engine must keep it
                options["max_model_len"] = self.info.max_model_len
            self._on_restart()
            log.error("the engine is gone (%s); starting a fresh one", self._failure or ending)
            await asyncio.sleep(min(0.5 * (2**failures - 1), LONGEST_BACKOFF_SECONDS))

    async def _run_engine(self, options: dict[str, Any]) -> str:
        """Run one engine from its start to its end; returns how it ended."""
        self._failure = None
        try:
            if self._sock is None:
                self.spawn()
            await self._listen(options)
        except NoriaError as error:
            self._failure = str(error)
        except Exception as error:  # an error in this code must not end the supervision
            log.exception("the service cannot go on with this engine")
            self._failure = f"{type(error).__name__}: {error}"
        self._fail_mailboxes()
        return await self._end_engine()

    async def _end_engine(self) -> str:
        if self._engine is None:
            return "never started"
        self._engine.kill()
        return await asyncio.to_thread(self._engine.wait)

    async def _listen(self, options: dict[str, Any]) -> None:
        """Tell the engine to load, then take its messages until the wire closes."""
        sock, self._sock = self._sock, None
        loop = asyncio.get_running_loop()
        self._transport, protocol = await loop.create_unix_connection(lambda: MessageProtocol(self._take), sock=sock)
        self._send(LoadModel(options))
        self._heard = self._now()
        watchdog = asyncio.create_task(self._watch(), name="engine-watchdog")
        try:
            await protocol.ended
        finally:
            watchdog.cancel()
            self._transport.close()
            self._transport = None

    def _take(self, message: FromEngine) -> None:
        self._heard = self._now()
        if isinstance(message, Report):
            self._deliver(message)
        elif isinstance(message, Loading):
            self.state = "loading" if self.info is None else "restarting"
            self.note(message.stage, message.progress)
        elif isinstance(message, Ready):
            self.info, self.state = message.info, "ready"
            self.note("ready", 1.0)
            self._stepped = self._now()
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif isinstance(message, Failed):
            self._failure = message.message
        else:
            assert isinstance(message, Beat)

    def _deliver(self, report: Report) -> None:
        self._stepped = self._heard
        self.stats = report.stats
        self._on_report(report)
        for update in report.updates:
            mailbox = self._mailboxes.get(update.id)
            if mailbox is None:
                continue
            if update.finish is not None:
                del self._mailboxes[update.id]
            mailbox.put(update)

    async def _watch(self) -> None:
        """Kill an engine that is silent or stuck. Delays of this event loop do not count as silence."""
        while True:
            before = self._now()
            await asyncio.sleep(WATCH_SECONDS)
            late = self._now() - before - WATCH_SECONDS
            self._heard += late
            self._stepped += late
            reason = self._stalled()
            if reason and self._engine is not None:
                log.error("%s; killing it", reason)
                self._fail_mailboxes()
                self._engine.kill()
                return

    def _stalled(self) -> str | None:
        now = self._now()
        silent = now - self._heard
        if silent > STOPPED_SECONDS and self._engine is not None and self._engine.stopped():
            return f"the engine process is stopped and has been silent for {silent:.1f} s"
        if silent > (self._stall_timeout if self.state == "ready" else LOADING_STALL_SECONDS):
            return f"the engine has been silent for {silent:.1f} s"
        if self._mailboxes and now - self._stepped > self._step_timeout:
            return f"the engine has finished no step in {self._step_timeout:g} s"
        return None

    def _fail_mailboxes(self) -> None:
        """End every request in flight; `submit` refuses new ones until an engine is ready again."""
        if self.state == "ready":
            self.state = "restarting"
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            mailbox.fail()

    def _close_mailbox(self, sequence_id: int) -> None:
        if self._mailboxes.pop(sequence_id, None) is not None:
            self._send(Abort(sequence_id))

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
