"""The engine as operators see it: requests in flight by id, live events, and metrics for Prometheus."""

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from service.access.record import Policy
from service.access.rights import check_sees_all, sees_all
from service.api.call import Call
from service.api.queries import choice
from service.api.routes import get, json_response
from service.errors.errors import RequestNotFound
from service.observe.view.feed import EngineEvent
from service.observe.view.live import Cancellation, RequestFacts, RequestList, recorded_facts
from service.recording.recorder import EngineRecord
from service.settings import METRIC_NAMES

QUIET = Policy(quiet=True)
"""A key at its limit of requests may still see them and cancel them."""


@get("/metrics", answer=str, policy=Policy(quiet=True), queries={"names": METRIC_NAMES})
async def metrics(call: Call) -> Response:
    """Report metrics as Prometheus reads them

    `?names=vllm` gives those that vLLM has too, under its names. Default: `--metrics-names`.
    """
    names = choice(call, "names", METRIC_NAMES, call.state.settings.metrics_names)
    return Response(call.state.metrics.render(vllm=names == "vllm"), headers={"content-type": CONTENT_TYPE_LATEST})


@get("/v1/engine/events", answer=EngineEvent, policy=Policy(quiet=True), endless=True)
async def engine_events(call: Call) -> None:
    """Send the state of the engine, at most ten times a second

    Server-sent events named `engine`, of the model in the query. They have no text, no token ids and no names of keys.
    """
    feed = call.model.feed
    with feed.listening(call.record.tenant):
        call.open(feed.framing)
        async for frames in feed.frames(lambda: call.record.has_ended):  # the feed itself ends with the drain
            await call.sink.write(frames)


@get("/v1/engine/record", answer=EngineRecord, policy=Policy(quiet=True))
async def engine_record(call: Call) -> Response:
    """Return the record of the last ten minutes, which `noria explain` reads

    A key needs the right `sees_all`. Without keys only a direct connection from this machine may ask.
    """
    check_sees_all(call.request.scope)
    recorder = call.state.recorder
    return await asyncio.to_thread(lambda: json_response(recorder.record()))


@get("/v1/requests", answer=RequestList, policy=QUIET)
async def list_requests(call: Call) -> Response:
    """List all requests in flight to models, those that hold the largest number of tokens first

    A key needs the right `sees_all`. Without keys only a direct connection from this machine may ask.
    """
    check_sees_all(call.request.scope)
    facts = await asyncio.gather(*map(call.state.requests.facts, call.state.requests))
    return json_response(RequestList(object="list", data=sorted(facts, key=lambda item: -item["held_tokens"])))


@get("/v1/requests/{id}", answer=RequestFacts, policy=QUIET)
async def request_facts(call: Call) -> Response:
    """Show the state of a request in flight

    The id is its `x-request-id`. Each key sees its own requests only, one with the right `sees_all` those of all keys.
    """
    requests, (owner, request_id) = call.state.requests, _whose(call)
    if not (found := requests.find(owner, request_id)):
        if (record := requests.ended(owner, request_id)) is None:
            raise RequestNotFound(request_id)
        return json_response(recorded_facts(record))
    return json_response(await requests.facts(found[-1]))


@get("/v1/requests/{id}", methods=("DELETE",), answer=Cancellation, policy=QUIET)
async def cancel_request(call: Call) -> Response:
    """Cancel the requests in flight with this id

    Their answers end with finish_reason "abort", or with an error where the API has no such reason.
    """
    requests, (owner, request_id) = call.state.requests, _whose(call)
    if not (found := requests.find(owner, request_id)):
        raise RequestNotFound(request_id)
    for live in found:
        live.cancel("with DELETE /v1/requests/ID", call.record.sender)
    return json_response(Cancellation(id=request_id, object="request.cancelled", cancelled=len(found)))


def _whose(call: Call) -> tuple[str | None, str]:
    """Return the owner of requests that the client may see, None for all of them, and the id in the path."""
    return None if sees_all(call.request.scope) else call.record.owner, call.request.path_params["id"]
