"""Stored responses: `GET`, `DELETE`, `cancel` and `input_items` of `/v1/responses/{id}`."""

import asyncio
from contextlib import suppress
from typing import Literal

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict

from service.access.record import Policy
from service.api.call import Call
from service.api.queries import BOOLEANS, choice, number
from service.api.responses.answer_types import StoredResponse
from service.api.responses.background import ended_as, put_ended, respond_now
from service.api.resuming import read
from service.api.routes import Answer, get, json_response
from service.api.run import Run
from service.api.stored.events import StoredEvents
from service.api.stored.lists import INCLUDED, QUERIES, ItemList, included, json_of, listed
from service.api.stored.requested import Requested
from service.errors.errors import InvalidRequest, Unavailable
from service.schema.fields import Json
from service.state.stored import Stored
from service.state.tables import Tables

QUIET = Policy(quiet=True)
"""A key at its limit of requests may still ask about its responses, and end them."""
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
    asked = Requested(call, "response")
    after = number(call, "starting_after", -1, least=0)
    streams = choice(call, "stream", BOOLEANS, "false") == "true"
    if after >= 0 and not streams:
        raise InvalidRequest("starting_after needs stream true", param="starting_after")
    names = included(call)
    if (running := _running(asked)) is not None:
        if not streams:
            return await respond_now(call, running)
        await read(call, running, after)
        return None
    if streams:
        await StoredEvents(asked, after).write()
        return None
    await _end_lost(asked)
    return await asked.answer(lambda stored: _whole(_ended(asked, stored)), names)


@get(PATH, methods=("DELETE",), answer=DeletedResponse, policy=QUIET)
async def delete(call: Call) -> Response:
    """Delete a stored response

    One that is computed is cancelled. Responses that continue it cannot be continued any more.
    """
    asked = Requested(call, "response")
    await asked.delete()
    if (running := _running(asked)) is not None:
        running.cancel()
    answer: DeletedResponse = {"id": asked.id, "object": "response", "deleted": True}
    return json_response(answer)


@get(f"{PATH}/cancel", methods=("POST",), answer=StoredResponse, policy=QUIET)
async def cancel(call: Call) -> Response:
    """Cancel a response in the background

    One that has ended stays as it is.
    """
    asked = Requested(call, "response")
    await _end_lost(asked)
    if _running(asked) is None and (stored := _ended(asked, await asked.read())).running:
        await put_ended(asked.store, asked.owner, stored, None)
    if (running := _running(asked)) is not None:
        running.cancel()
        await asyncio.wait([running.task])

    def cancelled(stored: Stored) -> Json:
        response = _whole(_ended(asked, stored))
        if not response["background"]:
            raise InvalidRequest("only a response that is created with background can be cancelled", param="id")
        return response

    return await asked.answer(cancelled)


@get(f"{PATH}/input_items", answer=ItemList, queries=QUERIES)
async def input_items(call: Call) -> Response:
    """List the input items of a stored response, the last one first

    They are those of its own request.
    """
    asked = Requested(call, "response")
    included(call)
    return await asked.answer(lambda stored: listed(call, [item for item in stored.items if not item.output]))


def _running(asked: Requested) -> Run | None:
    return asked.call.state.runs.found.get((asked.owner.name, asked.id))


LOST = Unavailable("the store did not take the end of this response", "store_failed")


async def _end_lost(asked: Requested) -> None:
    """Store the end of a response that does not run, and whose end the store did not take: it has failed."""
    if await asked.store.run(Tables.runs, asked.owner.name, asked.id) and _running(asked) is None:
        with suppress(Unavailable):
            await put_ended(asked.store, asked.owner, await asked.read(), LOST)


def _ended(asked: Requested, stored: Stored) -> Stored:
    return ended_as(stored, LOST) if stored.running and _running(asked) is None else stored


def _whole(stored: Stored) -> Json:
    """The response with its output."""
    facts: Json = orjson.loads(stored.value)
    return facts | {"output": json_of([item for item in stored.items if item.output])}
