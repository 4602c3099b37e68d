"""One engine as the service sees it: its process, the service's end of its wire, and the signs that it is hung."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from model.errors import NoriaError
from model.machine import frames
from model.machine.child import LOADING_SILENCE_SECONDS, SILENCE_SECONDS, STOPPED_SECONDS
from service.engine.messages import PIECE, Beat, Failed, FromEngine, LoadModel, Ready, Stop, ToEngine, from_json, pieces
from service.engine.prefixes.store import SAVE_SECONDS
from service.engine.supervision.process import EngineProcess

log = logging.getLogger("noria.engine")

STOP_SECONDS = SAVE_SECONDS + 0.5
"""Time for an engine to end by itself, when the service ends: it saves pages, and tells the ranks of other hosts."""
WATCH_SECONDS = 0.2


class Patience(NamedTuple):
    """The seconds for which an engine that is ready may make no progress with a sequence, and may be silent.

    It sends beats even inside a long step, but a busy machine may delay them.
    """

    step: float = 60.0
    silence: float = SILENCE_SECONDS


class EngineConnection(asyncio.Protocol):
    """An engine that has been spawned, from its start to its end. It gives each message to `take` as it arrives.

    `ready`: it has loaded its model. `failure`: what it said before it ended. `ended` is done when the wire closes, and
    fails with what `take` raises. Nothing is taken after that: a sequence whose update was lost must not get the next
    one. It writes a long message piece by piece, as fast as the engine reads it.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self.ready = False
        self.failure: str | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._take: Callable[[FromEngine], None] = lambda message: None
        self._heard = 0.0  # when its latest message came, by the event loop's clock
        self._stalled = 0.0  # the seconds that it last gave for its oldest sequence without progress
        self._transport: asyncio.WriteTransport | None = None
        self._incoming = bytearray()
        self._outgoing: deque[bytes | memoryview] = deque()
        self._paused = False

    async def open(self) -> None:
        """Start the engine, and read the wire from now on. Raises NoriaError if there is no socket for the wire."""
        loop = asyncio.get_running_loop()
        try:
            sock = self._engine.spawn()
        except OSError as error:
            raise NoriaError(f"the engine process cannot be started: {error.strerror or error}") from error
        self._heard = loop.time()
        try:
            await loop.create_unix_connection(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise

    @property
    def started(self) -> bool:
        """Return whether the machine has started the engine's process."""
        return self._engine.started

    def load(self, message: LoadModel, take: Callable[[FromEngine], None]) -> None:
        """Tell the engine to load its model. `take` gets its messages from now on."""
        self._take = take
        self.send(message)

    def send(self, message: ToEngine) -> None:
        """Write a message after those before it. A message to an engine that has ended is lost."""
        if self._transport is not None:
            self._outgoing += pieces(message)
            self._write()

    async def watch(self, patience: Patience) -> str | None:
        """Wait until the engine has ended (None), or has to be killed (why). Raises what `take` raises.

        Delays of this event loop do not count as silence.
        """
        clock = asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.wait((self.ended,), timeout=WATCH_SECONDS)
            if self.ended.done():
                self.ended.result()
                return None
            self._heard += clock() - before - WATCH_SECONDS
            if (reason := self._trouble(patience, clock() - self._heard)) is not None:
                return reason

    def _trouble(self, patience: Patience, silent: float) -> str | None:
        if silent > STOPPED_SECONDS and self._engine.stopped():
            return f"the engine process is stopped and has been silent for {silent:.1f} s"
        if silent > (patience.silence if self.ready else LOADING_SILENCE_SECONDS):
            return f"the engine has been silent for {silent:.1f} s"
        if self._stalled > patience.step:
            return (
                f"a sequence in the engine has made no progress for {self._stalled:.1f} s, --step-timeout allows "
                f"{patience.step:g} s; if the machine is slow, raise it or lower --max-step-tokens"
            )
        return None

    async def stop(self) -> None:
        """End the engine, as the service ends in good order."""
        if self.started:
            self.send(Stop())
            await asyncio.wait((self.ended,), timeout=STOP_SECONDS)
        await self.close()

    async def close(self) -> str:
        """End the engine; returns how it ended, for the log. An error on the way is logged, never raised."""
        try:
            self._engine.kill()
        except Exception:
            log.exception("the engine cannot be killed")
        try:
            if self._transport is not None:
                self._transport.close()
            return await asyncio.to_thread(self._engine.wait)
        except Exception as error:
            log.exception("the end of the engine cannot be seen")
            return f"unknown end: {type(error).__name__}"

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write()

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._incoming += data
        try:
            for value, _ in frames.received(self._incoming):
                self._receive(cast(FromEngine, from_json(value)))
        except Exception as error:
            self.ended.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._outgoing.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    def _receive(self, message: FromEngine) -> None:
        self._heard = asyncio.get_running_loop().time()
        if isinstance(message, Beat):
            self._stalled = message.stalled
        elif isinstance(message, Failed):
            self.failure = message.message
        self._take(message)
        if isinstance(message, Ready):
            self.ready = True

    def _write(self) -> None:
        while self._outgoing and not self._paused and self._transport is not None:
            self._transport.write(piece := self._outgoing.popleft())
            if len(piece) == PIECE:
                asyncio.get_running_loop().call_soon(self._write)
                return
