"""The application (its routes, middleware, model and engine), and the server that runs it."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from model.errors import NoriaError, OptionError
from model.tokenizers.slicing import Slicing
from service import logs
from service.api.admission import Admission, State
from service.api.anthropic import routes as anthropic
from service.api.document import routes as document
from service.api.document.hints import Hints
from service.api.embeddings import routes as embeddings
from service.api.lora import routes as lora
from service.api.openai import chat, completions, models
from service.api.operations import engine_events, metrics, requests
from service.api.operations import health as probes
from service.api.responses import routes as responses
from service.api.routes import Route
from service.api.tokens import routes as tokens
from service.engine.client import EngineClient
from service.generation.served import ServedModel
from service.generation.startup import load_served
from service.http.announcement import address, progress_bar, say, welcome
from service.http.connection.browsers import BrowserRules
from service.http.connection.limits import Limits
from service.http.connection.places import Places, raise_descriptor_limit
from service.http.dialects import error_response
from service.http.health import HealthListener
from service.http.keys.keys import Keys
from service.http.listening import is_local
from service.http.middleware import RequestMiddleware, Trace
from service.http.policy import Policies
from service.http.server import Server
from service.images.images import Images
from service.metrics import Metrics
from service.page.routes import PAGES, Page, start_at
from service.settings import Settings
from service.structured.trial import Grammars
from service.view.feed import Feed
from service.view.requests import LiveRequests

if TYPE_CHECKING:  # it needs packages that may be missing
    from service.http.tracing import Tracing

log = logging.getLogger("noria")

Loader = Callable[[Settings, EngineClient, Slicing], Awaitable[ServedModel]]
"""A function that loads the tokenizer and the network of `Settings.model`."""
ROUTES: tuple[Route, ...] = (
    completions.completions,
    chat.chat_completions,
    responses.responses,
    anthropic.messages,
    anthropic.count_tokens,
    embeddings.embeddings,
    models.models,
    models.model,
    lora.load,
    lora.unload,
    lora.load_as_in_vllm,
    lora.unload_as_in_vllm,
    tokens.tokenize,
    tokens.detokenize,
    tokens.apply_template,
    tokens.tokenizer_info,
    probes.live,
    probes.ready,
    probes.health,
    probes.ping,
    probes.show_version,
    metrics.metrics,
    engine_events.engine_events,
    requests.request_facts,
    requests.cancel_request,
    document.openapi,
)


def create_server(
    settings: Settings,
    client: EngineClient,
    measured: Metrics,
    sock: socket.socket,
    keys: Keys,
    *,
    progress: bool = False,
    health: socket.socket | None = None,
    load: Loader = load_served,
    routes: tuple[Route, ...] = ROUTES,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Server:
    """A server of the application. It reports the progress and the end of loading on stderr.

    `client` must report to `measured`. `sock` is the socket to serve on, `health` the one for probes alone.
    """

    port = None if sock.family == socket.AF_UNIX else sock.getsockname()[1]
    _warn_if_open(keys, sock)

    def on_ready(served: ServedModel) -> None:
        url = address(settings, port)
        log.info("ready", extra={"fields": {"model": served.names[0], "url": url, **served.info.description}})
        if settings.log_format == "human":
            unused_gpu = served.info.description.get("unused_gpu")
            say(welcome(served.names[0], url, chat=served.chat is not None, key=bool(keys), unused_gpu=unused_gpu))

    def on_failed(error: Exception) -> None:
        if isinstance(error, NoriaError):
            say(f"noria: {error}")
        else:
            log.error("internal error in what loads and watches the engine", exc_info=error)
            say(f"noria: the model cannot be served: {type(error).__name__}: {error}")
        server.fail()

    async def load_visibly(settings: Settings, client: EngineClient, slicing: Slicing) -> ServedModel:
        async with progress_bar(client) if progress else nullcontext():
            return await load(settings, client, slicing)

    hosts = _hosts(settings, keys, sock)
    app = create_app(settings, client, measured, keys, load_visibly, on_ready, on_failed, routes, hosts)

    def probed(path: str) -> tuple[int, bytes] | None:
        return probes.probed(getattr(app.state, "noria", None), path)  # None before the lifespan begins

    def reload_keys() -> None:
        keys.reload()
        measured.await_keys(keys.names)

    places = Places(raise_descriptor_limit(settings.max_connections), settings.max_connections_per_address)
    measured.watch_connections(lambda: places.n_open)
    server = Server(
        app,
        settings,
        drain=lambda: app.state.noria.admission.drain(),
        reloads={"keys": reload_keys, "log level": lambda: logs.use_level(settings.level())},
        places=places,
        on_refused=measured.observe_refused_connection,
        probes=None if health is None else HealthListener(health, probed),
        limits=limits,
    )
    return server


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
    """The names under which the server answers; None for any.

    Where it needs no key and only this machine may connect, nobody but a web page comes by another name.
    """
    own = {settings.address[0].lower(), *settings.hosts}
    at_risk = not keys and sock.family != socket.AF_UNIX and is_local(sock)
    return frozenset(own) if settings.hosts or at_risk else None


def create_app(
    settings: Settings,
    client: EngineClient,
    measured: Metrics,
    keys: Keys,
    load: Loader,
    on_ready: Callable[[ServedModel], None],
    on_failed: Callable[[Exception], None],
    routes: tuple[Route, ...],
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """The ASGI application. It serves at once, and loads the model in the background.

    It answers under the names `hosts` only; None: under any name.
    """

    async def bring_up(admission: Admission) -> None:
        try:
            admission.model = await load(
                settings, client, Slicing(pause=admission.work.pause, aside=admission.work.aside)
            )
            measured.describe_model(admission.model.names[0], admission.model.info)
            on_ready(admission.model)
            await client.supervised()
        except Exception as error:
            on_failed(error)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        admission = Admission(settings, client)
        measured.adapters.watch(lambda: admission.adapters.numbered)
        measured.watch_backlog(lambda: admission.backlog.tokens.total)
        feed = Feed(client, measured, lambda: admission.status, admission.expired)
        app.state.noria = State(
            settings,
            client,
            measured,
            admission,
            Grammars(measured.observe_trial_restart),
            Images(
                settings.max_images,
                settings.max_image_pixels,
                measured.observe_image_restart,
                measured.observe_image,
            ),
            feed,
            LiveRequests(client),
        )
        tasks = [asyncio.create_task(bring_up(admission)), asyncio.create_task(measured.watch_event_loop())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        feed.close()
        await client.close()
        await app.state.noria.grammars.close()
        await app.state.noria.images.close()
        admission.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    measured.await_keys(keys.names)
    tracing = _tracing(settings)
    browsers = BrowserRules(hosts, settings.cors_origins)
    trace = None if tracing is None else tracing.trace
    return _assemble(settings, measured, keys, lifespan, routes, browsers, trace)


def _tracing(settings: Settings) -> "Tracing | None":
    """What makes traces; None without a collector. Then nothing of OpenTelemetry is imported.

    Raises OptionError for a variable of OpenTelemetry that it does not understand.
    """
    if settings.otlp_endpoint is None:
        return None
    try:
        from service.http.tracing import Tracing

        return Tracing(settings.otlp_endpoint)
    except ValueError as error:
        raise OptionError(f"--otlp-endpoint: a variable OTEL_* has a wrong value: {error}") from error


def _check_prefix(prefix: str, served: Sequence[Route | Page]) -> None:
    """Raise OptionError for a prefix that begins like a path of ours: such a path could have two meanings."""
    first = prefix.split("/")[1]
    if (own := next((route.path for route in served if route.path.split("/")[1] == first), None)) is not None:
        raise OptionError(f"--root-path {prefix} begins like the server's own path {own}; choose another prefix")


def _assemble(
    settings: Settings,
    measured: Metrics,
    keys: Keys,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    routes: tuple[Route, ...],
    browsers: BrowserRules,
    trace: Trace | None,
) -> FastAPI:
    app = FastAPI(
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's traces would double ours and lack what the model did; its logs would hold text of clients.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    app.state.routes = routes
    for taking in routes:
        if taking.body is not None:
            measured.await_responses(taking.methods, taking.path)
    served: tuple[Route | Page, ...] = (*routes, *PAGES)
    if (prefix := settings.root_path) is not None:
        _check_prefix(prefix, served)
        served = (*served, start_at(prefix))
    for route in served:
        app.add_api_route(route.path, route.handler, methods=[*route.methods], name=route.name, response_model=None)
    hints = Hints(served, prefix or "")

    async def routing_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        helpful = hints.error(error, request.method, request.url.path)
        return error_response(helpful, request.scope["noria.record"].policy.dialect)

    app.add_exception_handler(HTTPException, routing_error)
    policies = Policies((route.path, route.policy) for route in served)
    app.add_middleware(
        RequestMiddleware, keys=keys, metrics=measured, policies=policies, browsers=browsers, trace=trace
    )
    if settings.cors_origins:  # outermost: a preflight carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=["x-request-id", "x-queue-ms", "x-noria-ignored", "retry-after"],
        )
    return app
