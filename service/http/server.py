"""The HTTP server: uvicorn, with a drain before it stops."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from service.settings import Settings

log = logging.getLogger("noria")

CLOSING_SECONDS = 5
"""Time for connections to close after the drain."""


class Server(uvicorn.Server):
    """A uvicorn server that stops after a drain, or at once after `fail`.

    `drain` refuses new requests, and returns when those in flight have ended or their time is up.
    """

    def __init__(self, app: ASGIApp, settings: Settings, drain: Callable[[], Awaitable[None]]) -> None:
        self.failed = False
        self._drain = drain
        self._drain_task: asyncio.Task[None] | None = None
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                http="service.http.protocol:Protocol" if sys.platform != "win32" else "auto",
                ws="none",
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )

    def fail(self) -> None:
        """Stop: there is no engine, and there will be none."""
        self.failed = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin a drain at the first signal, and end the process at the second."""
        if self._loop is None or not self.started:
            self.should_exit = True
        elif self._draining:
            os._exit(128 + sig)
        else:
            log.info("draining: requests in flight finish, new ones are refused; another signal ends at once")
            self._draining = True
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain_task = asyncio.create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        await self._drain()
        self.should_exit = True
