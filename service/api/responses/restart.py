"""What happens at a start to responses in the background that ran when the server ended."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import orjson
from fastapi import FastAPI, Request

from service.access.keys import Key
from service.access.record import Policy, RequestRecord
from service.api.ongoing import detach, never
from service.api.responses.background import begin, put_ended, read_request
from service.api.responses.body import ResponsesBody
from service.api.responses.creation import Creation
from service.api.state import State
from service.errors.errors import ApiError, Unavailable, as_api_error
from service.schema.fields import Json
from service.state.stored import Owner, Stored
from service.state.tables import Tables

log = logging.getLogger("noria.state")

FindKey = Callable[[str], Key | None]
PATH = "/v1/responses"


class Lost(Unavailable):
    """A response that is not computed again."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the server ended while it computed this response{why}", "server_ended")


async def interrupted(state: State) -> list[tuple[str, Stored]]:
    """What is to be computed again, by owner. The rest is marked as failed."""
    found = await state.store.run(Tables.interrupted)
    if state.settings.finish_after_restart:
        state.ongoing.found |= {(owner, stored.id): None for owner, stored in found}
        return found
    for owner, stored in found:
        await _mark_failed(state, owner, stored, Lost(""))
    return []


async def compute_again(app: FastAPI, found: Iterable[tuple[str, Stored]], find_key: FindKey) -> None:
    """Start responses anew, once the model is loaded. Those that would not be the same are marked as failed."""
    state: State = app.state.noria
    for owner, stored in found:
        try:
            await _compute_again(app, owner, find_key(owner), stored)
        except Exception as error:
            if not state.drain.draining:  # else the next server computes it
                await _mark_failed(state, owner, stored, as_api_error(error))
                del state.ongoing.found[owner, stored.id]


async def _compute_again(app: FastAPI, owner: str, key: Key | None, stored: Stored) -> None:
    """Start a response anew. Raises an ApiError where it would not be the same."""
    state: State = app.state.noria
    if not stored.request:
        raise Lost("")
    if owner and key is None:
        raise Lost(", and does not know its key any more")
    fingerprint, sent, body, begun = await state.work.run(lambda: _read(stored), stored.size)
    hosted = state.models.find(body.model, key)
    await state.models.until_loaded(hosted)
    if fingerprint and fingerprint != hosted.admission.require(body.model).fingerprint:
        raise Lost(", and serves another model or version now")
    if body.conversation_id is not None:
        raise Lost(", and its conversation may have changed since")
    record = RequestRecord(stored.id, "POST", PATH, PATH, Policy(operation="chat"), key=key, owner=owner)
    if body.receipt == "full":
        record.body = sent
    scope = {"type": "http", "app": app, "method": "POST", "path": PATH, "headers": [], "noria.record": record}
    request = Request(scope, receive=never)
    detach(scope)
    await begin(request, Creation(request, body, begun), record, again=True)
    log.info("computing a response again", extra={"fields": {"id": stored.id}})


def _read(stored: Stored) -> tuple[str, bytes, ResponsesBody, Json]:
    """The fingerprint, the body as it is stored and as a request, and the response so far."""
    fingerprint, sent = read_request(stored)
    return fingerprint, sent, ResponsesBody.model_validate_json(sent), orjson.loads(stored.value)


async def _mark_failed(state: State, owner: str, stored: Stored, error: ApiError) -> None:
    with suppress(ApiError):  # the log has it
        if await put_ended(state.store, Owner(owner), stored, error):
            log.warning("a response that ran when the server ended has failed", extra={"fields": {"id": stored.id}})
