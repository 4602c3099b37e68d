"""The HTTP server: uvicorn, with a drain before it stops."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from model.errors import NoriaError
from service.http.connection.exchange import Proxies
from service.http.connection.limits import Places
from service.http.connection.protocol import Connection
from service.http.health import HealthListener
from service.settings import Settings

log = logging.getLogger("noria")

CLOSING_SECONDS = 5
"""Time for connections to close after the drain."""


class Server(uvicorn.Server):
    """A uvicorn server that stops after a drain, or at once after `fail`.

    `drain` refuses new requests, and returns when those in flight have ended or their time is up. The server calls each
    of `reloads`, by the name of the thing that it reads again, at SIGHUP; it returns the changes. `on_refused` gets the
    reason when a connection refuses a request before any application sees it. `probes` listens on a port of its own. At
    SIGUSR2 it calls `record` on a thread.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        *,
        drain: Callable[[], Awaitable[None]],
        reloads: Mapping[str, Callable[[], str]],
        places: Places,
        on_refused: Callable[[str], None],
        probes: HealthListener | None = None,
        record: Callable[[], None] = lambda: None,
    ) -> None:
        self.failed = False
        self._drain = drain
        self._reloads = {"TLS certificate": self._reload_certificate, **reloads}
        self._settings = settings
        self._probes = probes
        self._record = record
        self._drain_task: asyncio.Task[None] | None = None
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # uvicorn takes any callable that makes a protocol.
        proxies = Proxies(settings.root_path, settings.proxies)
        protocol: Any = partial(Connection, places=places, proxies=proxies, on_refused=on_refused)
        super().__init__(
            uvicorn.Config(
                app,
                proxy_headers=False,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                http=protocol,
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
        if threading.current_thread() is threading.main_thread():
            self._loop.add_signal_handler(signal.SIGHUP, self.reload)
            self._loop.add_signal_handler(signal.SIGUSR2, self._loop.run_in_executor, None, self._record)
        if self._probes is not None:
            self._probes.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._probes is not None:
            await asyncio.to_thread(self._probes.close)

    def reload(self) -> None:
        """Read again what may change while the server runs. What cannot be read stays as it was."""
        failed, fields = [], {}
        for name, read in self._reloads.items():
            try:
                if change := read():
                    fields[name.lower().replace(" ", "_")] = change
            except (OSError, NoriaError) as error:
                log.error("reload: no change of the %s: %s", name, error)
                failed.append(name)
        if failed:
            log.warning("reloaded all but the %s", " and the ".join(failed), extra={"fields": fields})
        else:
            log.info("reloaded", extra={"fields": fields or {"changes": "none"}})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin a drain at the first signal, and end the process at the second."""
        if self._loop is None or not self.started:
            self.should_exit = True
        elif self._draining:
            log.warning("the drain has ended: a second signal ends the process at once")
            os._exit(128 + sig)
        else:
            log.info("draining: requests in flight finish, new ones are refused; another signal ends at once")
            self._draining = True
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _reload_certificate(self) -> str:
        """Use the new certificate for connections that begin from now on."""
        certificate, key = self._settings.ssl_certfile, self._settings.ssl_keyfile
        if self.config.ssl is not None and certificate is not None:
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # half a change would break the live context
            for context in (trial, self.config.ssl):
                context.load_cert_chain(certificate, key)
            return f"read {certificate.name}"
        return ""

    def _begin_drain(self) -> None:
        self._drain_task = asyncio.create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        await self._drain()
        self.should_exit = True
