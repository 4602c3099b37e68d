"""`GET /v1/models` and `GET /v1/models/{name}`."""

from datetime import UTC, datetime

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from model.checkpoint.generation_config import SAMPLING
from model.sampling_params import SamplingParams, declared
from service.api.admission import State
from service.api.openai.answers import CARD, LISTED, ModelCard, ModelList
from service.api.routes import get, json_response
from service.generation.served import ServedModel
from service.http.dialects import SHARED
from service.http.policy import Policy

POLICY = Policy(SHARED)


@get("/v1/models", answer=ModelList, answers=(LISTED,), policy=POLICY)
async def models(request: Request) -> Response:
    """List the names of the served model

    The list and its entries have the fields of OpenAI's, vLLM's and Anthropic's API.
    """
    state: State = request.app.state.noria
    served = state.admission.require()
    answer: ModelList = {
        "object": "list",
        "data": [card(served, name) for name in served.names],
        "first_id": served.names[0],
        "last_id": served.names[-1],
        "has_more": False,
    }
    return json_response(answer)


@get("/v1/models/{name:path}", answer=ModelCard, answers=(CARD,), policy=POLICY)
async def model(request: Request) -> Response:
    """Describe the served model under one of its names"""
    state: State = request.app.state.noria
    name = request.path_params["name"]
    if not name:  # /v1/models/
        raise HTTPException(404)
    return json_response(card(state.admission.require(name), name))


def card(served: ServedModel, name: str) -> ModelCard:
    windows = [pool.window for pool in served.info.pools]
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(served.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": served.info.max_model_len,
        "max_tokens": served.info.max_model_len,
        "owned_by": "noria",
        "parent": None,
        "max_model_len": served.info.max_model_len,
        "window": windows[0] if len(windows) == 1 else windows,
        "quantization": served.info.description.get("quantize"),
        "adapters": [],
        "defaults": sampling_defaults(served),
        "capabilities": {
            "chat": served.chat is not None,
            "tools": served.chat is not None,
            "reasoning": served.reasoning is not None,
            "vision": bool(served.image_roles),
        },
    }


def sampling_defaults(served: ServedModel) -> dict[str, float]:
    """The model's own sampling parameters; for those that it does not set, the server's."""
    rows = declared(SamplingParams)
    return {name: served.defaults.sampling.get(name, rows[name].default) for name in SAMPLING}
