"""`GET /v1/models` and `GET /v1/models/{name}`, `POST /v1/models/load` and `/v1/models/unload`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from model.checkpoint.generation_config import SAMPLING
from model.sampling_params import SamplingParams, declared
from service.access.record import Policy, RequestRecord
from service.access.rights import check_right
from service.api.call import Call
from service.api.openai.answer_types import ModelCard, ModelFacts, ModelList, ModelStatus
from service.api.routes import get, json_response, post
from service.api.text import fills_gaps
from service.errors.dialects import SHARED
from service.errors.errors import InvalidRequest, Unavailable
from service.generation.served import ServedModel
from service.hosting.durations import parse_duration
from service.hosting.hosted import HostedModel
from service.schema.fields import Body, optional

POLICY = Policy(SHARED)
Type = Literal["base", "model"]


@get("/v1/models", answer=ModelList, policy=POLICY)
async def models(call: Call) -> Response:
    """List the names of the served models, each with its LoRA adapters

    The list and its entries have the fields of OpenAI's, vLLM's, Mistral's and Anthropic's API.
    """
    allowed = call.state.models.allowed(call.record.key)
    cards = [card(model, name, _type(call)) for model in allowed for name in model.names]
    answer: ModelList = {
        "object": "list",
        "data": cards,
        "first_id": cards[0]["id"] if cards else None,
        "last_id": cards[-1]["id"] if cards else None,
        "has_more": False,
    }
    return json_response(answer)


@get("/v1/models/{name:path}", answer=ModelCard, policy=POLICY)
async def model(call: Call) -> Response:
    """Describe a model under one of its names, or a LoRA adapter"""
    if not call.name:  # /v1/models/
        raise HTTPException(404)
    return json_response(card(call.model, call.name, _type(call)))


class NamedModelBody(Body):
    """The request body of `POST /v1/models/unload`."""

    model: str = Field(description="A name of the model.", min_length=1)


class LoadBody(NamedModelBody):
    """The request body of `POST /v1/models/load`."""

    keep_alive: int | float | str | None = optional(
        "How long the model stays loaded after its last request: seconds, 10m, or -1 for ever. Without it the model's "
        "idle_unload remains."
    )

    def check(self) -> None:
        if self.keep_alive is not None:
            check_keep_alive(self.keep_alive)


@post("/v1/models/load", body=LoadBody, request={"model": "chat", "keep_alive": "10m"}, answer=ModelCard, policy=POLICY)
async def load(call: Call, body: LoadBody) -> Response:
    """Load a model

    The answer comes once the model serves. `GET /v1/models/{name}` tells how far loading is.
    """
    model = _managed(call)
    before = model.idle_seconds  # holds if the load is refused
    if body.keep_alive is not None:
        model.idle_seconds = check_keep_alive(body.keep_alive)
    try:
        await call.state.models.load(model)
    except Unavailable:
        model.idle_seconds = before
        raise
    return json_response(card(model, body.model, _type(call)))


@post("/v1/models/unload", body=NamedModelBody, request={"model": "chat"}, answer=ModelCard, policy=POLICY)
async def unload(call: Call, body: NamedModelBody) -> Response:
    """Unload a model

    Its running requests end first. The next request that names it loads it again.
    """
    model = _managed(call)
    await call.state.models.unload(model, "request")
    return json_response(card(model, body.model, _type(call)))


def check_keep_alive(value: object) -> float | None:
    """Return the seconds, or None for ever. Raises InvalidRequest."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidRequest(f"keep_alive {error}", param="keep_alive") from error


def _managed(call: Call) -> HostedModel:
    """Return the request's model. Raises Forbidden without the right, InvalidRequest on a server with one model."""
    call.watch.allow()
    model = call.model
    check_right(call.record, "loads_models", "load models")
    if not model.entry.on_demand:
        message = "this server has one model, which stays loaded: start it with several models, or with --models"
        raise InvalidRequest(message, param="model", code="one_model")
    return model


def may_load(record: RequestRecord) -> bool:
    """Return whether the key may load and unload models."""
    return record.key is None or record.key.entry.loads_models


def _type(call: Call) -> Type:
    """Return the type that Mistral's clients read, or Anthropic's: each ignores or refuses models of the other type."""
    return "model" if "anthropic-version" in call.request.headers else "base"


def card(model: HostedModel, name: str, kind: Type = "base") -> ModelCard:
    """Return the card of a model under one of its names, or of its adapter with this name.

    Raises Unavailable while the only model of a server is loading.
    """
    if model.admission.model is not None or not model.entry.on_demand:
        served = model.admission.require(name)
        names = () if served.adapter else model.admission.adapters.names
        return {**facts(served, name, names, kind), **_state(model)}
    adapter = model.admission.adapters.find(name)
    created = model.created if adapter is None else adapter.created
    parent, adapters = (model.name, ()) if adapter else (None, model.admission.adapters.names)
    return {**_named(name, created, kind, model.name, parent, adapters), **_state(model)}


def _named(name: str, created: int, kind: Type, root: str, parent: str | None, adapters: Sequence[str]) -> ModelFacts:
    """Return the fields that the cards of all models have."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "type": kind,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "lifecycle": "active",
        "owned_by": "noria",
        "root": root,
        "parent": parent,
        "adapters": [*adapters],
    }


def _state(model: HostedModel) -> ModelStatus:
    state = model.state
    found: ModelStatus = {
        "state": state,
        "pinned": model.entry.pinned,
        "memory_bytes": None if model.need is None else model.need.n_bytes,
    }
    if state == "loading":
        found |= {"stage": model.client.stage, "progress": round(model.client.progress, 3)}
    if state == "failed" and model.failure is not None:
        found["reason"] = model.failure
    return found


def facts(served: ServedModel, name: str, adapters: Sequence[str], kind: Type) -> ModelFacts:
    """Return the card of a loaded model without its state, under one of its names or as the adapter that it has."""
    windows, rows = [pool.window for pool in served.info.pools], declared(SamplingParams)
    root = served.names[0]
    created, parent = (served.adapter.created, root) if served.adapter else (served.created, None)
    return {
        **_named(name, created, kind, root, parent, adapters),
        "description": served.description,
        "max_input_tokens": served.info.max_model_len,
        "max_tokens": served.info.max_model_len,
        "max_model_len": served.info.max_model_len,
        "max_context_length": served.info.max_model_len,
        "window": windows[0] if len(windows) == 1 else windows,
        "quantization": served.info.description.get("quantize"),
        "defaults": {name: served.defaults.sampling.get(name, rows[name].default) for name in SAMPLING},
        "capabilities": {
            "chat": served.chat is not None,
            "tools": served.chat is not None,
            "reasoning": served.reasoning is not None,
            "vision": "image" in served.media_roles,
            "audio": "audio" in served.media_roles,
            "completion_chat": served.chat is not None,
            "function_calling": served.chat is not None,
            "completion_fim": fills_gaps(served.tokenizer),
        },
    }
