"""`GET` and `DELETE /v1/requests/{id}`."""

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.access.record import RequestRecord
from service.api.admission import State
from service.api.routes import get, json_response
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.picture import Picture
from service.errors.errors import RequestNotFound
from service.observe.view.facts import Cancellation, RequestFacts, ended_facts, live_facts
from service.observe.view.requests import LiveRequest

QUIET = Policy(quiet=True)
"""A key at its limit of requests may still ask about them and cancel them."""
WAITING: RequestFacts = {
    "id": "job-17",
    "object": "request",
    "path": "/v1/chat/completions",
    "state": "waiting",
    "age_seconds": 1.204,
    "prompt_tokens": 310,
    "cached_tokens": None,
    "generated_tokens": 0,
    "place": 3,
    "reason": "sequences",
    "start": {"seconds": 4.1},
    "outcome": None,
    "choices": [
        {
            "index": 0,
            "state": "waiting",
            "place": 3,
            "reason": "sequences",
            "computed_tokens": 0,
            "generated_tokens": 0,
        }
    ],
    "same_id": 1,
}


@get("/v1/requests/{id}", answer=RequestFacts, answers=(WAITING,), policy=QUIET)
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
    return json_response(live_facts(found[-1], picture, state.admission.seconds_to_start, len(found)))


@get(
    "/v1/requests/{id}",
    methods=("DELETE",),
    answer=Cancellation,
    answers=({"id": "job-17", "object": "request.cancelled", "cancelled": 1},),
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
        return await state.requests.look({choice.mailbox.id for choice in live.generation.choices})
    except (EngineUnavailable, EngineDied):
        return Picture()
