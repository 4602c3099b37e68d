"""What operators see of the engine: requests in flight by id, live events, and metrics for Prometheus."""

import asyncio
from contextlib import ExitStack

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from model.errors import quoted
from service.access.record import Policy, RequestRecord
from service.api.routes import get, json_response
from service.api.state import State, hosted
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.picture import Picture
from service.errors.errors import InvalidRequest, RequestNotFound
from service.errors.wording import either
from service.http.sse import EventStream
from service.observe.view.feed import EngineEvent
from service.observe.view.requests import Cancellation, LiveRequest, RequestFacts, ended_facts, live_facts

QUIET = Policy(quiet=True)
"""A key at its limit of requests may still ask about them and cancel them."""


@get("/v1/requests/{id}", answer=RequestFacts, policy=QUIET)
async def request_facts(request: Request) -> Response:
    """Show the state of a request in flight

    The id is its `x-request-id`. Each key sees its own requests only.
    """
    state: State = request.app.state.noria
    owner, request_id = _whose(request)
    if not (found := state.requests.find(owner, request_id)):
        if (record := state.requests.ended(owner, request_id)) is None:
            raise RequestNotFound(request_id)
        return json_response(ended_facts(record))
    picture = await _picture(state, found[-1])
    return json_response(live_facts(found[-1], picture, len(found)))


@get(
    "/v1/requests/{id}",
    methods=("DELETE",),
    answer=Cancellation,
    policy=QUIET,
)
async def cancel_request(request: Request) -> Response:
    """Cancel the requests in flight with this id

    Their answers end with finish_reason "abort", or with an error where the API has no such reason.
    """
    state: State = request.app.state.noria
    owner, request_id = _whose(request)
    if not (found := state.requests.find(owner, request_id)):
        raise RequestNotFound(request_id)
    for live in found:
        live.cancel()
    answer: Cancellation = {"id": request_id, "object": "request.cancelled", "cancelled": len(found)}
    return json_response(answer)


def _whose(request: Request) -> tuple[str, str]:
    record: RequestRecord = request.scope["noria.record"]
    return record.owner, request.path_params["id"]


async def _picture(state: State, live: LiveRequest) -> Picture:
    """A request's sequences in the engine. Empty if it has none there, or if no engine serves."""
    if live.generation is None:
        return Picture()
    try:
        sequences = {choice.mailbox.id for choice in live.generation.choices}
        return await state.requests.look(live.generation.client, sequences)
    except (EngineUnavailable, EngineDied):
        return Picture()


@get("/v1/engine/events", answer=EngineEvent, policy=Policy(quiet=True), endless=True)
async def engine_events(request: Request) -> Response:
    """Send the state of the engine, at most ten times a second

    Server-sent events named `engine`, of the model in the query. They have no text, no token ids and no names of keys.
    """
    record: RequestRecord = request.scope["noria.record"]
    feed = hosted(request, request.query_params.get("model")).feed
    with ExitStack() as stack:
        stack.enter_context(feed.listening(record.tenant))
        never = asyncio.get_running_loop().create_future()  # the feed itself ends with the drain
        return EventStream(feed.frames(), stack.pop_all(), never, feed.framing)


METRIC_NAMES = ("vllm",)
"""Whose names the metrics may have instead of ours."""


@get("/metrics", answer=str, policy=Policy(quiet=True), queries={"names": METRIC_NAMES})
async def metrics(request: Request) -> Response:
    """Report metrics as Prometheus reads them

    `?names=vllm` gives those that vLLM has too, under its names.
    """
    state: State = request.app.state.noria
    if (names := request.query_params.get("names")) not in (None, *METRIC_NAMES):
        message = f"names must be {either(METRIC_NAMES)}, or left out, got {quoted(names)}"
        raise InvalidRequest(message, param="names")
    return Response(state.metrics.render(vllm=names is not None), headers={"content-type": CONTENT_TYPE_LATEST})
