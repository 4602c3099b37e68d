"""`GET /metrics` for Prometheus."""

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from service.access.policy import Policy
from service.api.admission import State
from service.api.routes import get


@get("/metrics", answer=str, policy=Policy(quiet=True))
async def metrics(request: Request) -> Response:
    """Report metrics as Prometheus reads them"""
    state: State = request.app.state.noria
    return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})
