"""`GET /openapi.json`."""

import asyncio
from functools import lru_cache

import orjson
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from service.api.document.openapi import document

router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return Response(await asyncio.to_thread(_rendered, request.app), media_type="application/json")


@lru_cache(maxsize=1)
def _rendered(app: FastAPI) -> bytes:
    return orjson.dumps(document(app))
