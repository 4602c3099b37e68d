"""Responses in the background: runs that need no connection, to which clients come back by their ids."""

import asyncio
import logging
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import orjson
from starlette.responses import Response

from service.api.answering import generated, stream
from service.api.call import Answer, Call
from service.api.responses.answer_types import ResponseError
from service.api.responses.body import ResponsesBody
from service.api.responses.creation import Creation
from service.api.responses.history import history_of, stored_input
from service.api.responses.shape import ResponseShape
from service.api.resuming import reading
from service.api.run import Run
from service.errors.errors import ApiError, Cancelled, StoreFull, Unavailable
from service.generation.request import ModelRequest
from service.http.sse import Json
from service.state.store import Store
from service.state.stored import Owner, Stored, new_id
from service.state.tables import Tables

log = logging.getLogger("noria.state")

END = b"\n\n"
"""The end of each event."""


async def in_background(call: Call, body: ResponsesBody) -> Answer:
    """Start to compute a response. Raises every refusal before that, but those of a model that is not loaded yet."""
    id = new_id("resp")
    run = Run(call.state.runs, (call.record.owner, id), None)
    work = call.detached(run)
    background = Background(work, body, id)
    call.hand_over(work, background.answer(), background.failed)
    try:
        await run.begun()
    except asyncio.CancelledError:  # the client left before it knew the id
        run.task.cancel()
        raise
    if body.stream:
        return reading(call, run, -1)
    call.record.ignored = work.record.ignored
    return await respond_now(call, run)


async def respond_now(call: Call, run: Run) -> Response:
    """Return a running response as it stands. A thread writes it: its instructions may be long."""
    assert isinstance(run.framing, ResponseShape), "responses in the background have ids of their own"
    state = run.framing.state("in_progress" if run.work.begun else "queued")
    size = run.work.record.body_bytes + run.recording.n_bytes
    return call.respond(await call.state.work.run(lambda: orjson.dumps(state), size), computed=True)


class Background(Creation):
    """A response that is stored while it is computed, and that clients find in the store at once."""

    _begun: Stored  # what is stored of it at first

    async def answer(self) -> None:
        """Compute the response. If its model is not loaded, it is queued before that, and may still be refused."""
        call, model = self.call, self.call.model
        call.open(self.shape)
        waits = model.entry.on_demand and model.waits_for is not None
        if waits:
            model.check_loadable()
            with model.counted_waiting(call.record.tenant):
                history = await history_of(call, self.body)
                self.items = await call.on_lane(lambda: stored_input(history.resolved(self.body.input)))
                call.release()
                await self._queue()
        await call.admitted(self.body, self.shape)
        generation = await generated(call, self.made())
        if not waits:
            await self._queue()
        await stream(call, generation, self.shape, self.save)

    async def made(self) -> ModelRequest:
        return replace(await super().made(), by_token=True)

    async def _queue(self) -> None:
        """Store the response with its input, and let its client have the first events."""
        events = self.shape.queued()

        def put(tables: Tables) -> Stored:
            begun = self.stored(events[-1]["response"], running=True)
            tables.put(self.owner, begun)
            return begun

        storing = asyncio.ensure_future(self.store.run(put))
        try:
            self._begun = await asyncio.shield(storing)
        except asyncio.CancelledError:  # its client left before it had the id: nobody else knows it
            await asyncio.wait([storing])
            await self.store.run(Tables.delete, self.owner, self.shape.id)
            raise
        await self.call.sink.write([*map(self.shape.frame, events)])

    async def save(self, events: Sequence[Json]) -> None:
        """Store the complete response, with all its events."""
        response = events[-1]["response"]
        if not await self._replace(events):
            response["store"] = False
        await self.extend_conversation(response)

    async def failed(self, failure: ApiError) -> None:
        """Store the end of a response that failed, and write its last event."""
        event = self.shape.failed(None if isinstance(failure, Cancelled) else response_error(failure))
        await self._replace([event])
        await self.call.sink.write([self.shape.frame(event)])

    async def _replace(self, last: Sequence[Json]) -> bool:
        """Store the end, with all events up to the last ones. False: a client has deleted it, or the store is full."""
        assert isinstance(self.call.sink, Run), "it is computed by a run"
        recording, frame = self.call.sink.recording, self.shape.frame
        frames, complete = [*recording.frames], not recording.first

        def written() -> bytes:
            return zlib.compress(b"".join((*frames, *map(frame, last))), 1) if complete else b""

        owner, events = self.owner, await self.call.state.work.run(written, recording.n_bytes)
        try:
            return await self.store.run(
                lambda tables: tables.put(owner, self.stored(last[-1], events=events), only_running=True)
            )
        except (StoreFull, Unavailable) as error:
            with suppress(StoreFull, Unavailable):  # whoever reads it learns that
                await put_ended(self.store, owner, self._begun, error)
            return False


def response_error(error: ApiError) -> ResponseError:
    """Return the error of a failed response, with one of OpenAI's codes."""
    return {"code": "invalid_prompt" if error.status < 500 else "server_error", "message": error.message}


def ended_as(stored: Stored, error: ApiError | None) -> Stored:
    """Return a response that ran as a failed one, or without an error as a cancelled one. It has no events."""
    end = {"status": "failed", "error": response_error(error)} if error else {"status": "cancelled"}
    return replace(stored, value=orjson.dumps(orjson.loads(stored.value) | end), running=False)


async def fail_interrupted(store: Store) -> None:
    """Store that what ran when the server ended has failed."""
    why = Unavailable("the server ended while it computed this response", "server_ended")
    for owner, stored in await store.run(Tables.interrupted):
        with suppress(ApiError):  # the log has it
            if await put_ended(store, Owner(owner), stored, why):
                log.warning("a response that ran when the server ended has failed", extra={"fields": {"id": stored.id}})


async def put_ended(store: Store, owner: Owner, stored: Stored, error: ApiError | None) -> bool:
    """Store the end of a response that ran. False: a client has deleted it."""
    return await store.run(lambda tables: tables.put(owner, ended_as(stored, error), only_running=True))
