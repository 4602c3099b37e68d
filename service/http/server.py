"""The server process: signals, the drain, the last words. uvicorn does the rest."""

import asyncio
import logging
import os
import socket
import sys
from types import FrameType

import uvicorn

from model.errors import NoriaError
from service.app import Load, create_app
from service.engine.client import EngineClient
from service.generation.loading import load_served
from service.generation.served import ServedModel
from service.http.announcement import ProgressBar, address, say, welcome
from service.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("noria")

CLOSING_SECONDS = 5
"""For connections to close once every answer is complete."""


class Server(uvicorn.Server):
    """Serves until a signal has drained it, or until the model turned out not to load (`failed`)."""

    def __init__(
        self,
        settings: Settings,
        client: EngineClient,
        metrics: Metrics,
        port: int,
        *,
        progress: bool = False,
        load: Load = load_served,
    ) -> None:
        self.failed = False
        self._settings = settings
        self._port = port
        self._progress = ProgressBar(client) if progress else None
        self._progress_task: asyncio.Task[None] | None = None
        self._drain_task: asyncio.Task[None] | None = None
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app = create_app(settings, client, metrics, load=load, on_ready=self._on_ready, on_failed=self._on_failed)
        super().__init__(
            uvicorn.Config(
                self._app,
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._progress is not None:
            self._progress_task = asyncio.create_task(self._progress.run())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins a drain, the second ends the process at once."""
        if self._loop is None or not self.started:
            self.should_exit = True
        elif self._draining:
            os._exit(128 + sig)
        else:
            log.info("draining: requests in flight finish, new ones are refused; another signal ends at once")
            self._draining = True
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain_task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._app.state.noria.admission.drain()
        self.should_exit = True

    def _on_ready(self, served: ServedModel) -> None:
        self._stop_progress()
        url = address(self._settings, self._port)
        log.info("ready", extra={"fields": {"model": served.names[0], "url": url, **served.info.description}})
        if self._settings.log_format == "human":
            say(welcome(served, self._settings, url))

    def _on_failed(self, error: Exception) -> None:
        self._stop_progress()
        if isinstance(error, NoriaError):
            say(f"noria: {error}")
        else:
            log.error("internal error while loading the model", exc_info=error)
            say(f"noria: the model cannot be loaded: {type(error).__name__}: {error}")
        self.failed = True
        self.should_exit = True

    def _stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._progress_task is not None:
            self._progress_task.cancel()
