"""`/live`, `/ready`, `/health` (no key needed) and `/version`."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from service.state import State
from service.version import version

OPEN_PATHS = frozenset({"/live", "/ready", "/health"})
PROBES = ["GET", "HEAD"]

router = APIRouter()


@router.api_route("/live", methods=PROBES)
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "live"}


@router.api_route("/ready", methods=PROBES)
async def ready(request: Request) -> JSONResponse:
    """New requests are welcome; 503 while loading (with stage and progress), restarting or draining."""
    state: State = request.app.state.noria
    if state.reception.ready:
        return JSONResponse({"status": "ready"})
    report: dict[str, Any] = {"status": state.reception.status}
    if not state.reception.draining:
        report |= {"stage": state.client.stage, "progress": round(state.client.progress, 3)}
    return JSONResponse(report, 503)


@router.api_route("/health", methods=PROBES)
async def health(request: Request) -> JSONResponse:
    """The engine serves, draining or not."""
    state: State = request.app.state.noria
    healthy = state.reception.model is not None and state.client.state == "ready"
    return JSONResponse({"status": state.reception.status}, 200 if healthy else 503)


@router.get("/version")
async def show_version(request: Request) -> dict[str, Any]:
    state: State = request.app.state.noria
    model = state.reception.model
    return {"version": version(), "engine": model.info.description if model else None}
