"""Stored responses: `GET`, `DELETE`, `cancel` and `input_items` of `/v1/responses/{id}`."""

import asyncio
from collections.abc import Sequence
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
    if (running := _running(asked)) is not None:
        present = running.state
        return running.read(after) if streams else await asked.answer(lambda: present, running.size)
    stored = await _read(asked, included(request))
    if streams:
        return await StoredEvents(asked, after).response()
    return await asked.answer(lambda: _whole(stored), stored.size)


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
    if _running(asked) is None and (stored := await _read(asked)).running:
        await put_ended(asked.store, asked.owner, stored, None)
    if (running := _running(asked)) is not None and running.ongoing.task is not None:
        running.cancel()
        await asyncio.wait([running.ongoing.task])
    stored = await _read(asked)
    response = await asked.state.work.run(lambda: _whole(stored), stored.size)
    if not response["background"]:
        raise InvalidRequest("only a response that is created with background can be cancelled", param="id")
    return await asked.answer(lambda: response, stored.size)


@get(f"{PATH}/input_items", answer=ItemList, queries=QUERIES)
async def input_items(request: Request) -> Response:
    """List the input items of a stored response, the last one first

    They are those of its own request.
    """
    asked = Requested(request, "response")
    stored = await asked.read()
    included(request)
    return await asked.answer(lambda: listed(request, [item for item in stored.items if not item.output]), stored.size)


def _running(asked: Requested) -> Background | None:
    found: Background | None = asked.state.ongoing.found.get((asked.owner.name, asked.id))
    return found


async def _read(asked: Requested, included: Sequence[str] = ()) -> Stored:
    """What is stored of a response that does not run. The store may not have taken its end: then it has failed."""
    stored = await asked.read(included)
    if not stored.running or (asked.owner.name, asked.id) in asked.state.ongoing.found:
        return stored
    lost = Unavailable("the store did not take the end of this response", "store_failed")
    with suppress(Unavailable):
        await put_ended(asked.store, asked.owner, stored, lost)
    return await asked.state.work.run(lambda: ended_as(stored, lost), stored.size)


def _whole(stored: Stored) -> Json:
    """The response with its output."""
    facts: Json = orjson.loads(stored.value)
    return facts | {"output": json_of([item for item in stored.items if item.output])}
