"""`GET /openapi.json`."""

import asyncio
from functools import lru_cache
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.api.document.openapi import document
from service.api.routes import Route, get


class Document(TypedDict):
    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


@get("/openapi.json", answer=Document)
async def openapi(request: Request) -> Response:
    """Describe every route"""
    content = await asyncio.to_thread(_rendered, request.app.state.routes, request.app.state.noria.settings.root_path)
    return Response(content, media_type="application/json")


@lru_cache(maxsize=1)
def _rendered(routes: tuple[Route, ...], prefix: str | None) -> bytes:
    return orjson.dumps(document(routes, prefix))
