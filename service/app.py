"""The application: its routes, middleware, model and engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route as Routed

from model.errors import OptionError
from service.access.browsers import BrowserRules
from service.access.headers import HEADERS
from service.access.keys import Keys
from service.access.middleware import RequestMiddleware
from service.access.record import Policies, Policy, RequestRecord
from service.api import document, embeddings, lora, render, tokens
from service.api.anthropic import messages as anthropic
from service.api.audio import transcriptions
from service.api.lanes import Lanes
from service.api.ollama import embed, generation
from service.api.ollama import models as ollama
from service.api.openai import chat, completions, fim, models
from service.api.operations import engine
from service.api.operations import health as probes
from service.api.responses import compact
from service.api.responses import routes as responses
from service.api.responses.background import fail_interrupted
from service.api.routes import Endpoint, Route
from service.api.run import Runs
from service.api.state import Bodies, State
from service.api.stored import conversations
from service.api.stored import responses as stored
from service.audio.audio import Audios
from service.engine.client import EngineClient
from service.errors.dialects import OLLAMA, error_response
from service.errors.hints import NEVER, Hints
from service.hosting.budget import NeedOf
from service.hosting.drain import Drain
from service.hosting.entries import ModelEntry
from service.hosting.hosted import HostedModel, Loader
from service.hosting.memory import need_of
from service.hosting.models import HostedModels
from service.images.images import Images
from service.observe.metrics import Metrics
from service.observe.observer import Observer
from service.observe.view.live import LiveRequests
from service.page.routes import PAGES, Page, start_at
from service.receipts.keys import read_key
from service.recording.canary import ask_forever
from service.recording.recorder import Recorder
from service.schema.fields import declared_paths
from service.settings import Settings
from service.state.store import Store, opened
from service.structured.constraint import Grammars

if TYPE_CHECKING:  # it needs packages that may be missing
    from service.observe.kv_events import KvEvents
    from service.observe.tracing import Tracing

ClientOf = Callable[[ModelEntry], EngineClient]
"""Makes the client of a model's engine. It reports to the metrics of the model."""
RECORDED_BYTES = 2**26
"""Bytes of the events of streams that outlive their connections."""
TEXTS = (completions, fim, transcriptions, chat, responses, compact, stored, conversations, anthropic)
OTHERS = (embeddings, models, generation, embed, ollama, lora, tokens, render, probes, engine, document)
ROUTES = tuple(route for module in (*TEXTS, *OTHERS) for route in vars(module).values() if isinstance(route, Route))
"""Each route that these modules define, in this order."""


def create_app(
    settings: Settings,
    entries: Sequence[ModelEntry],
    client_of: ClientOf,
    measured: Metrics,
    keys: Keys,
    *,
    load: Loader,
    on_failed: Callable[[Exception], None],
    routes: tuple[Route, ...] = ROUTES,
    hosts: frozenset[str] | None = None,
    need: NeedOf = need_of,
) -> FastAPI:
    """Make the ASGI application. It serves at once, and loads the models in the background.

    `on_failed` is told why the only model will never be served. It answers under the names `hosts` only; None: under
    any name. `need` plans the memory of a model.
    """
    tracing = _tracing(settings)
    observer = Observer(measured, None if tracing is None else tracing.trace)
    store = opened(settings)
    events = _events(settings, entries)
    key = None if settings.receipt_key is None else read_key(settings.receipt_key)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        drain = Drain(settings.drain_timeout)

        def host(entry: ModelEntry, on_idle: Callable[[], None]) -> HostedModel:
            client = client_of(entry)
            if events is not None:
                client.on_pages = events.publish
            return HostedModel(entry, client, measured.of_model(entry.name), drain, load, on_idle, key)

        hosted = HostedModels(settings, entries, host, on_failed, need)
        state = app.state.noria = _state(settings, hosted, drain, measured, store, observer)
        async with _brought_up(app, on_failed):
            yield
        await _close(state)
        if events is not None:
            events.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    app = FastAPI(
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's traces would double ours and lack what the model did; its logs would hold text of clients.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    app.state.routes = routes
    _await_series(measured, keys, routes)
    app.add_middleware(
        RequestMiddleware,
        keys=keys,
        policies=_add_routes(app, routes, settings.root_path),
        browsers=BrowserRules(hosts, settings.cors_origins),
        observing=observer.observing,
    )
    _allow_origins(app, settings.cors_origins)
    return app


@asynccontextmanager
async def _brought_up(app: FastAPI, on_failed: Callable[[Exception], None]) -> AsyncIterator[None]:
    """Load and watch the models inside the context. The responses that a restart interrupted have failed."""
    state: State = app.state.noria
    await fail_interrupted(state.store)

    async def bring_up() -> None:
        try:
            await state.models.bring_up()
        except Exception as error:
            on_failed(error)

    work = [bring_up(), state.metrics.watch_event_loop(), state.recorder.run()]
    if state.settings.canary != "off":
        work.append(ask_forever(state.models))
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _await_series(measured: Metrics, keys: Keys, routes: tuple[Route, ...]) -> None:
    """Begin the series of all keys and of all routes with a body, and declare the fields that bodies may have."""
    measured.await_keys(keys.entries)
    for route in routes:
        if route.body is not None:
            measured.await_responses(route.methods, route.path)
            measured.fields |= frozenset(declared_paths(route.body))


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call the API. This is the outermost middleware: a preflight carries no key."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=[*HEADERS],
        )


def _state(
    settings: Settings, models: HostedModels, drain: Drain, measured: Metrics, store: Store, observer: Observer
) -> State:
    """Make the state that the endpoints share. The metrics watch it."""
    measured.watch_ready(lambda: drain.over(models.status) == "ready")
    measured.watch_stored(lambda: store.use.n_stored)
    measured.watch_stored_bytes(lambda: store.use.n_bytes)
    measured.memory_budget = lambda: None if models.budget is None else models.budget.total
    restarted = measured.observe_helper_restart
    return State(
        settings,
        models,
        drain,
        Lanes(),
        Bodies(settings.max_body_bytes),
        measured,
        Grammars(partial(restarted, "trial")),
        Images(settings.max_images, settings.max_image_pixels, partial(restarted, "images"), measured.observe_image),
        Audios(partial(restarted, "audio"), measured.observe_audio),
        LiveRequests(),
        store,
        Runs(observer.observing, RECORDED_BYTES),
        Recorder(settings, models, drain, measured, lambda: store.n_errors),
        settings.resume_key,
    )


async def _close(state: State) -> None:
    await state.runs.close()
    await state.models.close()
    await state.store.close()
    await state.grammars.close()
    await state.images.close()
    await state.audio.close()
    state.work.close()


def _tracing(settings: Settings) -> "Tracing | None":
    """Make the maker of traces; None without a collector. Then nothing of OpenTelemetry is imported.

    Raises OptionError for a variable of OpenTelemetry that it does not understand.
    """
    if settings.otlp_endpoint is None:
        return None
    try:
        from service.observe.tracing import Tracing

        return Tracing(settings.otlp_endpoint)
    except ValueError as error:
        raise OptionError(f"--otlp-endpoint: a variable OTEL_* has a wrong value: {error}") from error


def _events(settings: Settings, entries: Sequence[ModelEntry]) -> "KvEvents | None":
    """Make the publisher of KV events; None without an address. Then nothing of ZeroMQ is imported."""
    if settings.kv_events is None:
        return None
    if len(entries) > 1:
        raise OptionError(f"--kv-events needs one model, got {len(entries)}: a router knows it by its address")
    from service.observe.kv_events import KvEvents

    return KvEvents(settings.kv_events, settings.kv_events_replay, entries[0].name)


def _check_prefix(prefix: str, served: Sequence[Route | Page]) -> None:
    """Raise OptionError for a prefix that begins like a path of ours: such a path could have two meanings."""
    first = prefix.split("/")[1]
    if (own := next((route.path for route in served if route.path.split("/")[1] == first), None)) is not None:
        raise OptionError(f"--root-path {prefix} begins like the server's own path {own}; choose another prefix")


def _add_routes(app: FastAPI, routes: tuple[Route, ...], prefix: str | None) -> Policies:
    """Add the routes of the API and of the page, and hints for requests that none of them takes."""
    pages: tuple[Page, ...] = PAGES
    if prefix is not None:
        _check_prefix(prefix, (*routes, *pages))
        pages = (*pages, start_at(prefix))
    for route in routes:
        app.router.routes.append(Routed(route.path, Endpoint(route), methods=route.methods, name=route.name))
    for page in pages:
        app.add_route(page.path, page.handler, [*page.methods], page.name)
    served: tuple[Route | Page, ...] = (*routes, *pages)
    hints = Hints(((route.path, route.methods) for route in served), prefix or "")

    async def routing_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        helpful = hints.error(error, request.method, request.url.path)
        record: RequestRecord = request.scope["noria.record"]
        record.note_error(helpful)
        return error_response(helpful, record.policy.dialect)

    app.add_exception_handler(HTTPException, routing_error)
    never = [(path, Policy(OLLAMA)) for path in NEVER]
    return Policies([*((route.path, route.policy) for route in served), *never])
