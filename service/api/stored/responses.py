"""Stored responses: `GET`, `DELETE`, `cancel` and `input_items` of `/v1/responses/{id}`."""

import asyncio
from contextlib import suppress
from typing import Literal

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict

from service.access.record import Policy
from service.api.call import Answer, Call
from service.api.queries import BOOLEANS, choice, number
from service.api.responses.answer_types import StoredResponse
from service.api.responses.background import ended_as, put_ended, respond_now
from service.api.resuming import reading
from service.api.routes import get, json_response
from service.api.run import Run
from service.api.stored.events import StoredEvents
from service.api.stored.lists import INCLUDED, QUERIES, ItemList, included, json_of, listed
from service.api.stored.requested import Requested
from service.errors.errors import InvalidRequest, Unavailable
from service.schema.fields import Json
from service.state.stored import Stored
from service.state.tables import Tables

QUIET = Policy(quiet=True)
"""A key at its limit of requests may still see its responses, and end them."""
PATH = "/v1/responses/{id}"


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


@get(
    PATH,
    answer=StoredResponse,
    policy=QUIET,
    queries={"stream": BOOLEANS, "starting_after": (), "include": INCLUDED, "include_obfuscation": ("false",)},
)
async def retrieve(call: Call) -> Answer:
    """Show a stored response

    `?stream=true` sends the events of a response in the background, those after number `starting_after`, and follows
    it to its end.
    """
    requested = Requested(call, "response")
    after = number(call, "starting_after", -1, least=0)
    streams = choice(call, "stream", BOOLEANS, "false") == "true"
    if after >= 0 and not streams:
        raise InvalidRequest("starting_after needs stream true", param="starting_after")
    names = included(call)
    if (running := _running(requested)) is not None:
        return reading(call, running, after) if streams else await respond_now(call, running)
    if streams:
        await StoredEvents(requested, after).write()
        return None
    await _end_lost(requested)
    return await requested.answer(lambda stored: _whole(_ended(requested, stored)), names)


@get(PATH, methods=("DELETE",), answer=DeletedResponse, policy=QUIET)
async def delete(call: Call) -> Response:
    """Delete a stored response

    One that is computed is cancelled. Responses that continue it cannot be continued any more.
    """
    requested = Requested(call, "response")
    await requested.delete()
    if (running := _running(requested)) is not None:
        running.cancel()
    return json_response(DeletedResponse(id=requested.id, object="response", deleted=True))


@get(f"{PATH}/cancel", methods=("POST",), answer=StoredResponse, policy=QUIET)
async def cancel(call: Call) -> Response:
    """Cancel a response in the background

    One that has ended stays as it is.
    """
    requested = Requested(call, "response")
    await _end_lost(requested)
    if _running(requested) is None and (stored := _ended(requested, await requested.read())).running:
        await put_ended(requested.store, requested.owner, stored, None)
    if (running := _running(requested)) is not None:
        running.cancel()
        await asyncio.wait([running.task])

    def cancelled(stored: Stored) -> Json:
        response = _whole(_ended(requested, stored))
        if not response["background"]:
            raise InvalidRequest("only a response that is created with background can be cancelled", param="id")
        return response

    return await requested.answer(cancelled)


@get(f"{PATH}/input_items", answer=ItemList, queries=QUERIES)
async def input_items(call: Call) -> Response:
    """List the input items of a stored response, the last one first

    They are those of its own request.
    """
    requested = Requested(call, "response")
    included(call)
    return await requested.answer(lambda stored: listed(call, [item for item in stored.items if not item.output]))


def _running(requested: Requested) -> Run | None:
    return requested.call.state.runs.found.get((requested.owner.name, requested.id))


LOST = Unavailable("the store did not take the end of this response", "store_failed")


async def _end_lost(requested: Requested) -> None:
    """Store the end of a response that does not run, and whose end the store did not take: it has failed."""
    if await requested.store.run(Tables.runs, requested.owner.name, requested.id) and _running(requested) is None:
        with suppress(Unavailable):
            await put_ended(requested.store, requested.owner, await requested.read(), LOST)


def _ended(requested: Requested, stored: Stored) -> Stored:
    return ended_as(stored, LOST) if stored.running and _running(requested) is None else stored


def _whole(stored: Stored) -> Json:
    """Return the response with its output."""
    facts: Json = orjson.loads(stored.value)
    return facts | {"output": json_of([item for item in stored.items if item.output])}
