"""`/live`, `/ready`, `/health` (no key needed) and `/version`."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from service import version
from service.api.admission import State

OPEN_PATHS = frozenset({"/live", "/ready", "/health"})

router = APIRouter()


@router.head("/live", include_in_schema=False)
@router.get("/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "live"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """New requests are welcome; 503 while loading (with stage and progress), restarting or draining."""
    state: State = request.app.state.noria
    if state.admission.ready:
        return JSONResponse({"status": "ready"})
    report: dict[str, Any] = {"status": state.admission.status}
    if not state.admission.draining:
        report |= {"stage": state.client.stage, "progress": round(state.client.progress, 3)}
    return JSONResponse(report, 503)


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """The engine serves, draining or not."""
    state: State = request.app.state.noria
    healthy = state.admission.model is not None and state.client.state == "ready"
    return JSONResponse({"status": state.admission.status}, 200 if healthy else 503)


@router.get("/version")
async def show_version(request: Request) -> dict[str, Any]:
    state: State = request.app.state.noria
    model = state.admission.model
    return {
        "version": version(),
        "engine": model.info.description if model else None,
        "fingerprint": model.fingerprint if model else None,
    }
