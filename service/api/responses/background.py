"""Responses in the background: they need no connection, and clients come back to them by their ids."""

import secrets
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import orjson
from fastapi import Request
from starlette.responses import Response

from service.access.record import RequestRecord
from service.api.answering import stream_frames, submit_signed
from service.api.large import LargeAnswer
from service.api.ongoing import Ongoing, detach, never
from service.api.responses.answers import ResponseError, ResponseState
from service.api.responses.body import ResponsesBody
from service.api.responses.creation import Creation
from service.api.responses.shape import ResponseShape
from service.api.state import hosted
from service.errors.errors import ApiError, Cancelled, NotStored, StoreFull, Unavailable, as_api_error
from service.generation.request import ServedModel
from service.http.sse import Json
from service.observe.view.requests import LiveRequest
from service.state.store import Store
from service.state.stored import Owner, Stored
from service.state.tables import Tables

END = b"\n\n"
"""The end of each event."""


class Background:
    """A response that is computed without a connection. `ongoing` is set once it runs.

    `_queued` are its first events, `_begun` is what is stored of it, and `_live` tells whether it has begun.
    """

    ongoing: Ongoing
    _queued: Sequence[Json]
    _shape: ResponseShape
    _begun: Stored

    def __init__(self, creation: Creation) -> None:
        self._creation = creation
        self._live = LiveRequest(creation.record, has_reason=False)

    async def queue(self, served: ServedModel | None, name: str, *, again: bool = False) -> None:
        """Store the response with its input. `served` is None until the model is loaded.

        `again`: it is stored as running. Raises NotStored if it is not any more.
        """
        creation, state = self._creation, self._creation.state
        shape = creation.shape(served, creation.body.model or name)
        queued, again_by = shape.queued(), "" if served is None else served.fingerprint

        def write(tables: Tables) -> Stored | None:
            sent = written_request(creation.body, again_by) if state.settings.finish_after_restart else b""
            begun = creation.stored(queued[-1]["response"], running=True, request=sent)
            return begun if tables.put(creation.owner, begun, only_running=again) else None

        if (begun := await state.store.run(write)) is None:
            raise NotStored("response", shape.id)
        self._queued, self._shape, self._begun = queued, shape, begun

    async def submit(self, stack: ExitStack, request: Request, *, again: bool) -> AsyncIterator[list[bytes]]:
        """Submit the request, store the response, and return the frames of its stream. `stack` gets the admission."""
        served, generation, drafts = await submit_signed(stack, request, self._creation.body, self._creation.make)
        self._live.begin(generation)
        await self.queue(served, served.names[0], again=again)
        return stream_frames(generation, self._shape, drafts, self.save)

    async def late_frames(self, stack: ExitStack, request: Request) -> AsyncIterator[list[bytes]]:
        """The frames of a response that is queued, and waits for its model first."""
        unread = Request(request.scope, receive=never)
        async for frames in await self._live.wait(self.submit(stack, unread, again=True)):
            yield frames

    @property
    def state(self) -> ResponseState:
        """The response as it stands."""
        generation = self._live.generation
        began = generation is not None and any(choice.admitted for choice in generation.choices)
        return self._shape.state("in_progress" if began else "queued")

    async def shown(self) -> Response:
        """The response as it stands, as an answer. A thread writes it: its instructions may be long."""
        state, size = self.state, self._begun.size + self.ongoing.recording.n_bytes
        content = await self._creation.state.work.run(lambda: orjson.dumps(state), size)
        return LargeAnswer(content, computed=True)

    def cancel(self) -> None:
        self._live.cancel("by the id of its response", self._live.record.sender)

    def note_queued(self) -> None:
        """Record the first events, and let clients find the response."""
        for event in self._queued:
            self.ongoing.recording.add(self._shape.frame(event))
        self._creation.state.ongoing.found[self._creation.owner.name, self._shape.id] = self

    def read(self, after: int) -> Response:
        """A stream of the events after number `after`, to the end of the response."""
        return self.ongoing.stream(after, self._creation.state.drain.expired, self._shape)

    async def save(self, events: Sequence[Json]) -> None:
        """Store the complete response, with all its events."""
        response = events[-1]["response"]
        if not await self._replace(events):
            response["store"] = False
        await self._creation.extend_conversation(response)

    async def ended(self, failure: Exception | None) -> None:
        """Store the end of a response that failed, and forget what runs.

        One that the next server computes again stays as it is when this server ends.
        """
        recording, work = self.ongoing.recording, self._creation.state.ongoing
        if failure is not None and not isinstance(failure, Cancelled) and self._begins_again():
            recording.end(failure)
            return
        if failure is not None:
            error = None if isinstance(failure, Cancelled) else response_error(as_api_error(failure))
            event = self._shape.failed(error)
            await self._replace([event])
            recording.add(self._shape.frame(event))
        recording.end()
        work.recordings.forget(recording)
        work.found.pop((self._creation.owner.name, self._shape.id), None)

    def _begins_again(self) -> bool:
        state = self._creation.state
        return state.settings.finish_after_restart and state.drain.expired.done()

    async def _replace(self, last: Sequence[Json]) -> bool:
        """Store the end, with all events up to the last ones. False: a client has deleted it, or the store is full."""
        creation, recording = self._creation, self.ongoing.recording
        store, owner, frames, complete = creation.state.store, creation.owner, [*recording.frames], not recording.first

        def written() -> bytes:
            return zlib.compress(b"".join((*frames, *map(self._shape.frame, last))), 1) if complete else b""

        events = await creation.state.work.run(written, recording.n_bytes)
        try:
            return await store.run(
                lambda tables: tables.put(owner, creation.stored(last[-1], events=events), only_running=True)
            )
        except (StoreFull, Unavailable) as error:
            with suppress(StoreFull, Unavailable):  # whoever asks is told
                await put_ended(store, owner, self._begun, error)
            return False


async def in_background(request: Request, body: ResponsesBody) -> Response:
    """Start to compute a response. Raises every refusal before that, but those of a model that is not loaded yet."""
    record = detach(request.scope)
    if request.app.state.noria.settings.finish_after_restart and body.agreed("seed") is None:
        body = body.model_copy(update={"seed": secrets.randbits(63)})  # that of the second time, too
    background = await begin(request, Creation(request, body), record)
    if not body.stream:
        return await background.shown()
    record.streams = True
    return background.read(-1)


async def begin(request: Request, creation: Creation, record: RequestRecord, *, again: bool = False) -> Background:
    """Submit a request, and store its input. The work has the record of the scope; `record` is the request's own.

    If the model is not loaded, it is submitted later. `again` is as in `queue`.
    """
    background, work = Background(creation), creation.state.ongoing
    model = hosted(request, creation.body.model)
    with ExitStack() as stack:
        if model.entry.on_demand and model.waits_for is not None:
            model.check_loadable()
            with model.counted_waiting(record.tenant):
                await creation.read_input()
                await background.queue(None, model.name, again=again)
            frames = background.late_frames(stack.enter_context(ExitStack()), request)
        else:
            frames = await background.submit(stack, request, again=again)
        background.ongoing = work.begin(record, request.scope, stack.pop_all(), frames, background.ended)
    background.note_queued()
    return background


def written_request(body: ResponsesBody, fingerprint: str) -> bytes:
    """What gives the same response again: the fingerprint of what computes it, and the body without its input."""
    fields = body.model_dump(by_alias=True, exclude_none=True, exclude={"input", "tools"})
    tools = [tool.model_dump(by_alias=True, exclude_none=True) for tool in body.tools or ()]
    return orjson.dumps([fingerprint, fields | {"tools": tools}])


def read_request(stored: Stored) -> tuple[str, bytes]:
    """The fingerprint, and the JSON of the body with the input as it is stored."""
    fingerprint, body = orjson.loads(stored.request)
    return fingerprint, orjson.dumps(body | {"input": [orjson.loads(item.value) for item in stored.items]})


def response_error(error: ApiError) -> ResponseError:
    """The error of a failed response, with one of OpenAI's codes."""
    return {"code": "invalid_prompt" if error.status < 500 else "server_error", "message": error.message}


def ended_as(stored: Stored, error: ApiError | None) -> Stored:
    """A response that ran, and has failed; without an error, it was cancelled. It has no events."""
    end = {"status": "failed", "error": response_error(error)} if error else {"status": "cancelled"}
    return replace(stored, value=orjson.dumps(orjson.loads(stored.value) | end), running=False, request=b"")


async def put_ended(store: Store, owner: Owner, stored: Stored, error: ApiError | None) -> bool:
    """Store that a response that ran has ended so. False: a client has deleted it."""
    return await store.run(lambda tables: tables.put(owner, ended_as(stored, error), only_running=True))
