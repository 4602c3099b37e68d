"""The service's side of the engine: start it, watch it, replace it, hand out mailboxes. Lives on the event loop.

A life is one engine process from spawn to end. The first life's failure is the service's failure; later lives are
replaced until one serves again. Nothing here blocks the loop: the wire is buffered both ways.
"""

import asyncio
import itertools
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
    Load,
    Loading,
    Ready,
    Report,
    Stats,
    Submit,
    ToEngine,
)
from service.engine.process import Host
from service.engine.wire import frame, received

log = logging.getLogger("noria.engine")

WATCH_SECONDS = 0.2
LOADING_STALL_SECONDS = 120.0
"""Importing torch from a cold disk may hold the interpreter for long."""
STOPPED_SECONDS = 1.0
"""Silence after which an engine that a signal has stopped is given up: it will not speak by itself."""
LONGEST_BACKOFF_SECONDS = 30.0


class _Ear(asyncio.Protocol):
    """Gives `take` every message as it arrives: no task wakes up for it.

    `ended` is done when the wire closes, and fails with what `take` raises.
    """

    def __init__(self, take: Callable[[FromEngine], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            for message in received(self._buffer):
                self._take(message)  # type: ignore[arg-type]
        except Exception as error:
            if not self.ended.done():
                self.ended.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class EngineClient:
    """Submits sequences and delivers their updates, whichever engine process is serving.

    `state` is "starting", "loading", "ready", "restarting", "failed" or "stopped"; `stage` and `progress` (0..1)
    describe loading. `info` is set once ready. An engine is replaced when it dies, when it is stopped, when it is
    silent for `stall_timeout` seconds (it beats even inside long steps, but a crowded machine may starve it for a
    while), and when it has work but finishes no step in `step_timeout` seconds.
    """

    def __init__(
        self,
        host_factory: Callable[[], Host],
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
        self._host_factory = host_factory
        self._step_timeout = step_timeout
        self._stall_timeout = stall_timeout
        self._on_report = on_report
        self._on_restart = on_restart
        self._ids = itertools.count(1)
        self._mailboxes: dict[int, Mailbox] = {}
        self._host: Host | None = None
        self._sock: socket.socket | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._stepped = 0.0
        self._failure: str | None = None

    def spawn(self) -> None:
        """Start an engine process now; it imports what it needs while the caller goes on. Needs no event loop.

        Raises NoriaError when the machine has no room for another process.
        """
        self._host = self._host_factory()
        try:
            self._sock = self._host.spawn()
        except OSError as error:
            raise NoriaError(f"the engine process cannot be started: {error.strerror or error}") from error

    async def start(self, options: Mapping[str, Any]) -> None:
        """Load the model with these runner options and wait until it serves. Raises NoriaError if it cannot."""
        if self._host is None:
            self.spawn()
        self._ready = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(dict(options)), name="engine-supervisor")
        await self._ready

    def note(self, stage: str, progress: float) -> None:
        """Say how far loading is, for readiness answers."""
        self.stage, self.progress = stage, progress

    def submit(
        self, prompt: list[int], params: SamplingParams, choice: int = 0, *, priority: int = 0, cache_salt: str = ""
    ) -> Mailbox:
        """Queue one sequence. Raises EngineUnavailable unless the engine is ready."""
        if self.state != "ready":
            raise EngineUnavailable(f"the engine is {self.state}")
        if not self._mailboxes:
            self._stepped = self._now()
        mailbox = Mailbox(next(self._ids), self._close_mailbox)
        self._mailboxes[mailbox.id] = mailbox
        self._send(Submit(mailbox.id, prompt, params, choice, priority, cache_salt))
        return mailbox

    async def close(self) -> None:
        """End the engine; requests still running get EngineDied."""
        self.state = "stopped"
        self._fail_mailboxes()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._end_host()
        if self._sock is not None:
            self._sock.close()

    async def _supervise(self, options: dict[str, Any]) -> None:
        """Run one life after the other; only the first may give up."""
        failures = 0
        while True:
            ending = await self._live(options)
            if self._ready is not None and not self._ready.done():
                self.state = "failed"
                self._ready.set_exception(
                    NoriaError(self._failure or f"the engine ended while loading the model ({ending})")
                )
                return
            failures = 0 if self.stage == "ready" else failures + 1
            self.state, self.stage, self.progress = "restarting", "restarting", 0.0
            self.stats = Stats()
            if self.info is not None:  # what was promised to clients must be served by the next engine too
                options["max_model_len"] = self.info.max_model_len
            self._on_restart()
            log.error("the engine is gone (%s); starting a fresh one", self._failure or ending)
            await asyncio.sleep(min(0.5 * (2**failures - 1), LONGEST_BACKOFF_SECONDS))

    async def _live(self, options: dict[str, Any]) -> str:
        """One life from spawn to end: how it ended."""
        self._failure = None
        try:
            if self._sock is None:
                self.spawn()
            await self._listen(options)
        except NoriaError as error:
            self._failure = str(error)
        except Exception as error:  # a fault of ours must not end the supervision
            log.exception("the engine is given up")
            self._failure = f"{type(error).__name__}: {error}"
        self._fail_mailboxes()
        return await self._end_host()

    async def _end_host(self) -> str:
        if self._host is None:
            return "never started"
        self._host.kill()
        return await asyncio.to_thread(self._host.wait)

    async def _listen(self, options: dict[str, Any]) -> None:
        """Load, then take in messages until the wire closes."""
        sock, self._sock = self._sock, None
        loop = asyncio.get_running_loop()
        self._transport, ear = await loop.create_unix_connection(lambda: _Ear(self._take), sock=sock)
        self._send(Load(options))
        self._heard = self._now()
        watchdog = asyncio.create_task(self._watch(), name="engine-watchdog")
        try:
            await ear.ended
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
        """Kill an engine that is silent or stuck. Time that this loop itself lost is not held against it."""
        while True:
            before = self._now()
            await asyncio.sleep(WATCH_SECONDS)
            late = self._now() - before - WATCH_SECONDS
            self._heard += late
            self._stepped += late
            reason = self._stalled()
            if reason and self._host is not None:
                log.error("%s; killing it", reason)
                self._fail_mailboxes()
                self._host.kill()
                return

    def _stalled(self) -> str | None:
        now = self._now()
        silent = now - self._heard
        if silent > STOPPED_SECONDS and self._host is not None and self._host.stopped():
            return f"the engine process is stopped and has been silent for {silent:.1f} s"
        if silent > (self._stall_timeout if self.state == "ready" else LOADING_STALL_SECONDS):
            return f"the engine has been silent for {silent:.1f} s"
        if self._mailboxes and now - self._stepped > self._step_timeout:
            return f"the engine has finished no step in {self._step_timeout:g} s"
        return None

    def _fail_mailboxes(self) -> None:
        """Every request in flight ends now; new ones are refused until an engine is ready again."""
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
