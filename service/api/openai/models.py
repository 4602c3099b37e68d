"""`GET /v1/models` and `GET /v1/models/{name}`."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from model.checkpoint.generation_config import SAMPLING
from model.sampling_params import SamplingParams, declared
from service.access.record import Policy
from service.api.admission import State
from service.api.openai.answers import ModelCard, ModelList
from service.api.openai.completions import fills_gaps
from service.api.routes import get, json_response
from service.errors.dialects import SHARED
from service.generation.request import ServedModel

POLICY = Policy(SHARED)
Type = Literal["base", "model"]


@get("/v1/models", answer=ModelList, policy=POLICY)
async def models(request: Request) -> Response:
    """List the names of the served model, then its LoRA adapters

    The list and its entries have the fields of OpenAI's, vLLM's, Mistral's and Anthropic's API.
    """
    state: State = request.app.state.noria
    served, adapters, kind = state.admission.require(), state.admission.adapters, _type(request)
    cards = [card(served, name, adapters.names, kind) for name in served.names]
    cards += [card(replace(served, adapter=adapter), adapter.name, kind=kind) for adapter in adapters]
    answer: ModelList = {
        "object": "list",
        "data": cards,
        "first_id": cards[0]["id"],
        "last_id": cards[-1]["id"],
        "has_more": False,
    }
    return json_response(answer)


@get("/v1/models/{name:path}", answer=ModelCard, policy=POLICY)
async def model(request: Request) -> Response:
    """Describe the served model under one of its names, or a LoRA adapter"""
    state: State = request.app.state.noria
    name = request.path_params["name"]
    if not name:  # /v1/models/
        raise HTTPException(404)
    served = state.admission.require(name)
    names = () if served.adapter else state.admission.adapters.names
    return json_response(card(served, name, names, _type(request)))


def _type(request: Request) -> Type:
    """What Mistral's clients read, or Anthropic's: each ignores or refuses a model of the other type."""
    return "model" if "anthropic-version" in request.headers else "base"


def card(served: ServedModel, name: str, adapters: Sequence[str] = (), kind: Type = "base") -> ModelCard:
    windows = [pool.window for pool in served.info.pools]
    created = served.created if served.adapter is None else served.adapter.created
    return {
        "id": name,
        "object": "model",
        "created": created,
        "type": kind,
        "display_name": name,
        "description": served.description,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": served.info.max_model_len,
        "max_tokens": served.info.max_model_len,
        "owned_by": "noria",
        "root": served.names[0],
        "parent": None if served.adapter is None else served.names[0],
        "max_model_len": served.info.max_model_len,
        "max_context_length": served.info.max_model_len,
        "window": windows[0] if len(windows) == 1 else windows,
        "quantization": served.info.description.get("quantize"),
        "adapters": [*adapters],
        "defaults": sampling_defaults(served),
        "capabilities": {
            "chat": served.chat is not None,
            "tools": served.chat is not None,
            "reasoning": served.reasoning is not None,
            "vision": bool(served.image_roles),
            "completion_chat": served.chat is not None,
            "function_calling": served.chat is not None,
            "completion_fim": fills_gaps(served.tokenizer),
        },
    }


def sampling_defaults(served: ServedModel) -> dict[str, float]:
    """The model's own sampling parameters; for those that it does not set, the server's."""
    rows = declared(SamplingParams)
    return {name: served.defaults.sampling.get(name, rows[name].default) for name in SAMPLING}
