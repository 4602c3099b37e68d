"""The server of `noria serve`: the application on its socket, and its announcement on the terminal."""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fastapi import FastAPI

from model.errors import NoriaError
from service import logs
from service.access.keys import Keys
from service.api.operations import health as probes
from service.api.routes import Route
from service.app import ROUTES, ClientOf, create_app
from service.commands.announcement import address, say, welcome
from service.engine.client import EngineClient
from service.generation.served import ServedModel
from service.generation.startup import load_served
from service.hosting.entries import ModelEntry, read_entries
from service.hosting.hosted import Loader, public_reason
from service.hosting.memory import need_of
from service.hosting.models import NeedOf
from service.http.connection.limits import Places, raise_descriptor_limit
from service.http.health import HealthListener
from service.http.listening import is_local
from service.http.server import Server
from service.observe.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("noria")


def create_server(
    settings: Settings,
    entries: Sequence[ModelEntry],
    client_of: ClientOf,
    measured: Metrics,
    sock: socket.socket,
    keys: Keys,
    *,
    progress: bool = False,
    health: socket.socket | None = None,
    load: Loader = load_served,
    routes: tuple[Route, ...] = ROUTES,
    need: NeedOf = need_of,
) -> Server:
    """Make the server of the application. It reports the progress and the end of loading on stderr.

    `client_of` makes clients that report to `measured`. `sock` is the socket to serve on, `health` the one for probes
    alone. `load` loads a model, `need` plans its memory.
    """
    _warn_if_open(keys, sock)
    url = address(settings, None if sock.family == socket.AF_UNIX else sock.getsockname()[1])

    def on_failed(error: Exception) -> None:
        _tell(error)
        measured.journal.note("failure", public_reason(error), model=entries[0].name)
        app.state.noria.recorder.write("failed")
        server.fail()

    app = create_app(
        settings,
        entries,
        client_of,
        measured,
        keys,
        load=_announced(load, url, key=bool(keys), progress=progress),
        on_failed=on_failed,
        routes=routes,
        hosts=_hosts(settings, keys, sock),
        need=need,
    )

    def probed(path: str) -> tuple[int, bytes] | None:
        return probes.probed(getattr(app.state, "noria", None), path)  # None before the lifespan begins

    places = Places(raise_descriptor_limit(settings.max_connections), settings.max_connections_per_address)
    measured.watch_connections(lambda: places.n_open)
    server = Server(
        app,
        settings,
        drain=lambda: app.state.noria.drain.drain(sum(model.waiting.total for model in app.state.noria.models)),
        reloads=_reloads(app, settings, measured, keys),
        places=places,
        on_refused=measured.observe_refused_connection,
        probes=None if health is None else HealthListener(health, probed),
        record=lambda: app.state.noria.recorder.write("signal"),
    )
    return server


def _tell(error: Exception) -> None:
    """Say on stderr why the only model will never be served."""
    if isinstance(error, NoriaError):
        say(f"noria: {error}")
    else:
        log.error("internal error in what loads and watches the engine", exc_info=error)
        say(f"noria: the model cannot be served: {type(error).__name__}: {error}")


def _announced(load: Loader, url: str, *, key: bool, progress: bool) -> Loader:
    """Return a function that loads a model by `load`, and announces it. `key`: clients need one."""

    async def load_and_announce(settings: Settings, client: EngineClient) -> ServedModel:
        with _showing(client) if progress else nullcontext():
            served = await load(settings, client)
        log.info("ready", extra={"fields": {"model": served.names[0], "url": url, **served.info.description}})
        if settings.log_format == "human":
            unused_gpu = served.info.description.get("unused_gpu")
            say(welcome(served.names[0], url, chat=served.chat is not None, key=key, unused_gpu=unused_gpu))
        return served

    return load_and_announce


def _reloads(app: FastAPI, settings: Settings, measured: Metrics, keys: Keys) -> dict[str, Callable[[], str]]:
    """Return what is read again at SIGHUP, by name. Each function returns what it has changed."""

    def reload_keys() -> str:
        before = keys.entries
        keys.reload()
        measured.await_keys(keys.entries)
        app.state.noria.requests.end_those_of_ended_keys()
        return changes(before, keys.entries)

    def reload_level() -> str:
        before = logs.level()
        logs.use_level(settings.level())
        return "" if before == logs.level() else f"{before} to {logs.level()}"

    def reload_models() -> str:
        models = app.state.noria.models
        before = {model.name: model.entry for model in models}
        models.reload(read_entries(settings))
        return changes(before, {model.name: model.entry for model in models})

    reloads = {"keys": reload_keys, "log level": reload_level}
    return reloads if settings.models is None else {**reloads, "models": reload_models}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the names that were added, removed and changed; an empty text without any."""
    changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    kinds = {"added": after.keys() - before.keys(), "removed": before.keys() - after.keys(), "changed": changed}
    return "; ".join(f"{kind} {', '.join(sorted(names))}" for kind, names in kinds.items() if names)


def _showing(client: EngineClient) -> AbstractContextManager[None]:
    """Show stage and progress of loading on stderr inside the context."""
    from service.commands.pulse import showing, stage

    return showing("", lambda: (client.progress, stage(client.stage, client.progress)))


def _warn_if_open(keys: Keys, sock: socket.socket) -> None:
    if not keys and not is_local(sock):
        host, port, *_ = sock.getsockname()
        log.warning(
            "no API key is needed at %s, port %d: everyone who reaches it may use the server; set --api-key or "
            "--api-key-file, or listen on 127.0.0.1 with --host",
            host,
            port,
        )


def _hosts(settings: Settings, keys: Keys, sock: socket.socket) -> frozenset[str] | None:
    """Return the names under which the server answers; None for any.

    Where it needs no key and only this machine may connect, nobody but a web page comes by another name.
    """
    own = {settings.address[0].lower(), *settings.hosts}
    at_risk = not keys and sock.family != socket.AF_UNIX and is_local(sock)
    return frozenset(own) if settings.hosts or at_risk else None
