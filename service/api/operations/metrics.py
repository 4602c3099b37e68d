"""`GET /metrics` for Prometheus."""

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from service.api.admission import State

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    state: State = request.app.state.noria
    return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})
