"""The application: routes, middleware, and the life of engine and model behind them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from service.api.admission import Admission, State
from service.api.anthropic import routes as messages
from service.api.document import routes as openapi
from service.api.embeddings import routes as embeddings
from service.api.openai import chat, completions, models
from service.api.operations import health, metrics
from service.api.responses import routes as responses
from service.api.tokens import routes as tokens
from service.engine.client import EngineClient
from service.generation.loading import load_served
from service.generation.served import ServedModel
from service.http.errors import error_response
from service.http.middleware import RequestMiddleware
from service.metrics import Metrics
from service.settings import Settings
from service.structured.trial import Grammars

log = logging.getLogger("noria")

Load = Callable[[Settings, EngineClient], Awaitable[ServedModel]]
ROUTERS = (
    completions.router,
    chat.router,
    responses.router,
    messages.router,
    embeddings.router,
    models.router,
    tokens.router,
    health.router,
    metrics.router,
    openapi.router,
)


def create_app(
    settings: Settings,
    client: EngineClient,
    measured: Metrics,
    *,
    load: Load = load_served,
    on_ready: Callable[[ServedModel], None] = lambda served: None,
    on_failed: Callable[[Exception], None] = lambda error: None,
) -> FastAPI:
    """The ASGI application. It answers at once and loads the model in the background.

    `measured` must be what `client` reports to. `on_ready` and `on_failed` tell how loading ended.
    """

    async def bring_up(admission: Admission) -> None:
        try:
            admission.model = await load(settings, client)
        except Exception as error:
            on_failed(error)
        else:
            on_ready(admission.model)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        admission = Admission(settings, client)
        app.state.noria = State(settings, client, measured, admission, Grammars())
        tasks = [asyncio.create_task(bring_up(admission)), asyncio.create_task(measured.watch_event_loop())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await app.state.noria.grammars.close()
        admission.close()

    return _assemble(settings, measured, lifespan)


def _assemble(
    settings: Settings, measured: Metrics, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]
) -> FastAPI:
    app = FastAPI(lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_middleware(RequestMiddleware, api_keys=settings.api_keys, metrics=measured)
    if settings.cors_origins:  # outermost: a preflight carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-queue-ms", "retry-after"],
        )
    return app


async def _routing_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.url.path)
