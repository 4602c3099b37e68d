"""Stored responses: `GET`, `DELETE`, `cancel` and `input_items` of `/v1/responses/{id}`."""

import asyncio
from contextlib import suppress
from typing import Literal

import orjson
from fastapi import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.access.record import Policy
from service.api.queries import BOOLEANS, choice, number
from service.api.responses.answers import StoredResponse
from service.api.responses.background import Background, ended_as, put_ended
from service.api.routes import get, json_response
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
async def retrieve(request: Request) -> Response:
    """Show a stored response

    `?stream=true` sends the events of a response in the background, those after number `starting_after`, and follows
    it to its end.
    """
    asked = Requested(request, "response")
    after = number(request, "starting_after", -1, least=0)
    streams = choice(request, "stream", BOOLEANS, "false") == "true"
    if after >= 0 and not streams:
        raise InvalidRequest("starting_after needs stream true", param="starting_after")
    names = included(request)
    if (running := _running(asked)) is not None:
        return running.read(after) if streams else await running.shown()
    if streams:
        return await StoredEvents(asked, after).response()
    await _end_lost(asked)
    return await asked.answer(lambda stored: _whole(_ended(asked, stored)), names)


@get(PATH, methods=("DELETE",), answer=DeletedResponse, policy=QUIET)
async def delete(request: Request) -> Response:
    """Delete a stored response

    One that is computed is cancelled. Responses that continue it cannot be continued any more.
    """
    asked = Requested(request, "response")
    await asked.delete()
    if (running := _running(asked)) is not None:
        running.cancel()
    answer: DeletedResponse = {"id": asked.id, "object": "response", "deleted": True}
    return json_response(answer)


@get(f"{PATH}/cancel", methods=("POST",), answer=StoredResponse, policy=QUIET)
async def cancel(request: Request) -> Response:
    """Cancel a response in the background

    One that has ended stays as it is.
    """
    asked = Requested(request, "response")
    await _end_lost(asked)
    if _running(asked) is None and (stored := _ended(asked, await asked.read())).running:
        await put_ended(asked.store, asked.owner, stored, None)
    if (running := _running(asked)) is not None and running.ongoing.task is not None:
        running.cancel()
        await asyncio.wait([running.ongoing.task])

    def cancelled(stored: Stored) -> Json:
        response = _whole(_ended(asked, stored))
        if not response["background"]:
            raise InvalidRequest("only a response that is created with background can be cancelled", param="id")
        return response

    return await asked.answer(cancelled)


@get(f"{PATH}/input_items", answer=ItemList, queries=QUERIES)
async def input_items(request: Request) -> Response:
    """List the input items of a stored response, the last one first

    They are those of its own request.
    """
    asked = Requested(request, "response")
    included(request)
    return await asked.answer(lambda stored: listed(request, [item for item in stored.items if not item.output]))


def _running(asked: Requested) -> Background | None:
    found: Background | None = asked.state.ongoing.found.get((asked.owner.name, asked.id))
    return found


LOST = Unavailable("the store did not take the end of this response", "store_failed")


async def _end_lost(asked: Requested) -> None:
    """Store the end of a response that does not run, and whose end the store did not take: it has failed."""
    if await asked.store.run(Tables.runs, asked.owner.name, asked.id) and not _runs(asked):
        with suppress(Unavailable):
            await put_ended(asked.store, asked.owner, await asked.read(), LOST)


def _ended(asked: Requested, stored: Stored) -> Stored:
    return ended_as(stored, LOST) if stored.running and not _runs(asked) else stored


def _runs(asked: Requested) -> bool:
    return (asked.owner.name, asked.id) in asked.state.ongoing.found


def _whole(stored: Stored) -> Json:
    """The response with its output."""
    facts: Json = orjson.loads(stored.value)
    return facts | {"output": json_of([item for item in stored.items if item.output])}
