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
from service.api.queries import BOOLEANS, choice, number, several
from service.api.responses.answers import StoredResponse
from service.api.responses.background import Background, ended_as, events_after
from service.api.routes import get, json_response
from service.api.stored.lists import INCLUDED, QUERIES, ItemList, listed, shown
from service.api.stored.requested import Requested
from service.errors.errors import InvalidRequest, Unavailable
from service.http.sse import HEADERS
from service.schema.fields import Json
from service.state.stored import Stored
from service.state.tables import Tables

QUIET = Policy(quiet=True)
"""A key at its limit of requests may still ask about its responses, and end them."""
PATH = "/v1/responses/{id}"
NO_EVENTS = (
    "stream: no events of this response are stored. They are for a response with background, unless it was queued or "
    "running when the server ended, the store did not take its end, or it had too many events"
)


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
    included = several(request, "include", INCLUDED)
    streams = choice(request, "stream", BOOLEANS, "false") == "true"
    if after >= 0 and not streams:
        raise InvalidRequest("starting_after needs stream true", param="starting_after")
    if (running := _running(asked)) is not None:
        return running.read(after) if streams else json_response(running.state)
    stored = await _read(asked)
    if not streams:
        return json_response(_whole(stored, included))
    if not stored.events:
        raise InvalidRequest(NO_EVENTS, param="stream")
    events = await asked.state.work.run(lambda: events_after(stored, after), len(stored.events))
    return Response(events, headers={name.decode(): value.decode() for name, value in HEADERS})


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
        await asked.store.run(Tables.put, asked.owner, ended_as(stored, None), only_running=True)
    if (running := _running(asked)) is not None and running.ongoing.task is not None:
        running.cancel()
        await asyncio.wait([running.ongoing.task])
    response = _whole(await _read(asked), ())
    if not response["background"]:
        raise InvalidRequest("only a response that is created with background can be cancelled", param="id")
    return json_response(response)


@get(f"{PATH}/input_items", answer=ItemList, queries=QUERIES)
async def input_items(request: Request) -> Response:
    """List the input items of a stored response, the last one first

    They are those of its own request.
    """
    stored = await Requested(request, "response").read()
    return json_response(listed(request, [item for item in stored.items if not item.output]))


def _running(asked: Requested) -> Background | None:
    found: Background | None = asked.state.ongoing.found.get((asked.owner.name, asked.id))
    return found


async def _read(asked: Requested) -> Stored:
    """What is stored of a response that does not run. The store may not have taken its end: then it has failed."""
    stored = await asked.read()
    if not stored.running or (asked.owner.name, asked.id) in asked.state.ongoing.found:
        return stored
    lost = ended_as(stored, Unavailable("the store did not take the end of this response", "store_failed"))
    with suppress(Unavailable):
        await asked.store.run(Tables.put, asked.owner, lost, only_running=True)
    return lost


def _whole(stored: Stored, included: Sequence[str]) -> Json:
    """The response with its output."""
    facts: Json = orjson.loads(stored.value)
    return facts | {"output": shown([item for item in stored.items if item.output], included)}
