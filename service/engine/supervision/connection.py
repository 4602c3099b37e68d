"""One engine and the service's end of its wire, from spawn to end."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from model.errors import NoriaError
from service.engine.messages import Beat, Failed, FromEngine, LoadModel, Ready, Stop
from service.engine.supervision.process import EngineHandle
from service.engine.wire import MessageProtocol

log = logging.getLogger("noria.engine")

STOP_SECONDS = 0.5
"""Time for an engine to end by itself, when the service ends: it tells the ranks of other hosts."""


class Connection:
    """An engine that has been spawned.

    `ready`: it has loaded its model. `failure`: what it said before it ended. `protocol`: its wire, once that is open.
    `heard`: when its latest message came, by the event loop's clock. `stalled`: the seconds that it last gave for its
    oldest sequence without progress.
    """

    def __init__(self, engine: EngineHandle) -> None:
        """Start the engine; it imports what it needs. Needs no event loop.

        Raises NoriaError if the machine cannot start another process.
        """
        self.engine = engine
        self.ready = False
        self.failure: str | None = None
        self.heard = 0.0
        self.stalled = 0.0
        self._take: Callable[[FromEngine], None] = lambda message: None
        self._transport: asyncio.WriteTransport | None = None
        self.protocol: MessageProtocol | None = None
        try:
            self._sock = engine.spawn()
        except OSError as error:
            raise NoriaError(f"the engine process cannot be started: {error.strerror or error}") from error

    async def open(self) -> None:
        """Read the wire from now on, so that the beats of an engine that waits cannot fill it. Does nothing again."""
        if self.protocol is not None:
            return
        loop = asyncio.get_running_loop()
        self._transport, self.protocol = await loop.create_unix_connection(
            lambda: MessageProtocol(self._receive), sock=self._sock
        )
        self.heard = loop.time()

    def load(self, options: Mapping[str, Any], step_timeout: float, take: Callable[[FromEngine], None]) -> None:
        """Tell the engine to load its model. `take` gets its messages from now on."""
        self._take = take
        assert self.protocol is not None, "the connection is not open"
        self.protocol.send(LoadModel(dict(options), step_timeout))

    async def ended(self, within: float) -> bool:
        """Whether the wire closes within so many seconds. Raises what `take` raises."""
        assert self.protocol is not None, "the connection is not open"
        done, _ = await asyncio.wait((self.protocol.ended,), timeout=within)
        for future in done:
            future.result()
        return bool(done)

    async def stop(self) -> None:
        """End the engine, as the service ends in good order."""
        if self.protocol is not None:
            self.protocol.send(Stop())
            await asyncio.wait((self.protocol.ended,), timeout=STOP_SECONDS)
        await self.close()

    async def close(self) -> str:
        """End the engine; returns how it ended, for the log. An error on the way is logged, never raised."""
        try:
            self.engine.kill()
        except Exception:
            log.exception("the engine cannot be killed")
        try:
            (self._transport or self._sock).close()
            return await asyncio.to_thread(self.engine.wait)
        except Exception as error:
            log.exception("the end of the engine cannot be seen")
            return f"unknown end: {type(error).__name__}"

    def _receive(self, message: FromEngine) -> None:
        self.heard = asyncio.get_running_loop().time()
        if isinstance(message, Beat):
            self.stalled = message.stalled
        elif isinstance(message, Failed):
            self.failure = message.message
        self._take(message)
        if isinstance(message, Ready):
            self.ready = True
