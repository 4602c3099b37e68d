"""`GET /v1/models` and `GET /v1/models/{id}`."""

from typing import Any

from fastapi import APIRouter, Request

from service.api.admission import State
from service.generation.served import ServedModel

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    state: State = request.app.state.noria
    served = state.admission.require()
    return {"object": "list", "data": [card(served, name) for name in served.names]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    state: State = request.app.state.noria
    return card(state.admission.require(name), name)


def card(served: ServedModel, name: str) -> dict[str, Any]:
    """vLLM's, and how the model is run. `window`: of attention, in tokens; null is full, a list where layers differ."""
    windows = [pool.window for pool in served.info.pools]
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "noria",
        "parent": None,
        "max_model_len": served.info.max_model_len,
        "window": windows[0] if len(windows) == 1 else windows,
        "quantization": served.info.description.get("quantize"),
        "adapters": [],
    }
