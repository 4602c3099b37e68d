"""`GET` and `DELETE /v1/requests/{id}`."""

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.access.record import RequestRecord
from service.api.admission import State
from service.api.routes import get, json_response
from service.engine.forecast import Waits
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.picture import MAX_LOADS, Picture, SequencePicture
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
    "start": {"seconds": 4.1, "error_seconds": 2.3},
    "first_token": {"seconds": 4.6, "error_seconds": 2.4},
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
    picture, waits = await _engine_view(state, found[-1])
    sequences = {item.id: item for item in picture.sequences}
    return json_response(live_facts(found[-1], sequences, waits, len(found)))


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


def _in_outlook(item: SequencePicture) -> bool:
    return item.reason != "grammar" and (item.place is None or item.place <= MAX_LOADS)


async def _engine_view(state: State, live: LiveRequest) -> tuple[Picture, Waits]:
    """What the engine knows of a request's sequences. Nothing if it has none of them, or if no engine serves."""
    nothing = Picture(), Waits(None, None)
    if live.generation is None:
        return nothing
    ids = {choice.mailbox.id for choice in live.generation.choices}
    try:
        picture = await state.requests.look(ids)
        found = [item for item in picture.sequences if item.id in ids]
        if any(item.generated for item in found) or not any(map(_in_outlook, found)):
            return picture, nothing[1]
        return picture, await state.requests.waits(ids)
    except (EngineUnavailable, EngineDied):
        return nothing
