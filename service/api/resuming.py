"""Streams that a client may resume: it asks with the header `x-noria-resume: 1`, and comes back with `Last-Event-ID`.

The id of an event is that of its request and its number, `REQUEST:NUMBER`. A client that has received no event sends
`REQUEST:`. The rest of such a request has no effect.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace

from fastapi import Request
from starlette.responses import Response

from model.errors import quoted
from service.access.record import LAST, RequestRecord
from service.api.answering import Shape, answer, begin_stream
from service.api.ongoing import Ongoing, detach
from service.api.prompt import Make
from service.api.state import State
from service.errors.errors import InvalidRequest, NotStored
from service.generation.request import ModelRequest, ServedModel
from service.http.sse import KEEP_ALIVE, Framing
from service.schema.generation import StreamBody

RESUME = "x-noria-resume"
MAX_DIGITS = 9


class Resumable:
    """A stream that goes on for a while without a client. `ongoing` is set once it runs."""

    ongoing: Ongoing

    def __init__(self, state: State, record: RequestRecord, framing: Framing) -> None:
        self._state = state
        self._key = _key(record, record.id)
        self._framing = _NoEmptyEvents(framing)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, ongoing: Ongoing) -> None:
        """Let clients find the stream."""
        self.ongoing, ongoing.unread = ongoing, self._wait
        self._state.ongoing.found[self._key] = self

    def read(self, record: RequestRecord, after: int) -> Response:
        """The answer to a request that reads the events after number `after`."""
        record.policy, record.streams = replace(record.policy, operation=None), True
        return self.ongoing.stream(after, self._state.drain.expired, self._framing)

    async def ended(self, failure: Exception | None) -> None:
        self.ongoing.recording.end(failure)
        if not self._is_found():
            self._forget()
        elif not self.ongoing.n_readers:
            self._wait()

    def _wait(self) -> None:
        """Wait for a reader, until the time is up."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._state.settings.resume_seconds, self._abandon)

    def _abandon(self) -> None:
        if self.ongoing.n_readers:
            return
        if self._is_found():
            del self._state.ongoing.found[self._key]
        if self.ongoing.recording.ended:
            self._forget()
        elif self.ongoing.task is not None:
            self.ongoing.task.cancel()

    def _is_found(self) -> bool:
        """Whether clients still come back to this one: a later request may have the same id."""
        return self._state.ongoing.found.get(self._key) is self

    def _forget(self) -> None:
        self._state.ongoing.recordings.forget(self.ongoing.recording)


class _NoEmptyEvents:
    """The framing of another, whose signs of life end no event.

    OpenAI's packages take a comment and an empty line for an event without data once an event had an id.
    """

    def __init__(self, framing: Framing) -> None:
        self.frame, self.failure = framing.frame, framing.failure
        self._framing = framing

    @property
    def done(self) -> bytes:
        return self._framing.done

    def keep_alive(self) -> tuple[bytes, float]:
        sign, seconds = self._framing.keep_alive()
        return sign.rstrip(b"\n") + b"\n" if sign == KEEP_ALIVE else sign, seconds


async def answer_resumable(
    request: Request, body: StreamBody, make: Make[ModelRequest], make_shape: Callable[[ServedModel, str], Shape]
) -> Response:
    """The response to a generation request, whose stream the client may resume. Raises as `answer` does."""
    wanted, last = request.headers.get(RESUME), request.headers.get(LAST)
    if wanted not in (None, "0", "1"):
        raise InvalidRequest(f"the header {RESUME} must be 0 or 1, got {quoted(wanted)}", param=RESUME)
    if last is None and wanted != "1":
        return await answer(request, body, make, make_shape)
    if not body.stream:
        name = RESUME if last is None else LAST
        raise InvalidRequest(f"the header {name} needs stream true", param=name)
    if last is not None:
        return _resumed(request, last)
    state: State = request.app.state.noria
    record = detach(request.scope)
    with ExitStack() as stack:
        frames, framing = await begin_stream(stack, request, body, make, make_shape)
        resumable = Resumable(state, record, framing)
        numbered, guard = _numbered(frames, record.id), stack.pop_all()
        resumable.begin(state.ongoing.begin(record, request.scope, guard, numbered, resumable.ended))
    return resumable.read(record, -1)


def refuse_resume(request: Request) -> None:
    """Raise InvalidRequest for a response of the Responses API that wants the events of a chat."""
    if (wanted := request.headers.get(RESUME, "0")) != "0":
        how = "with background true, GET /v1/responses/ID?stream=true&starting_after=NUMBER goes on with a stream"
        raise InvalidRequest(f"the header {RESUME} must be 0 here, got {quoted(wanted)}: {how}", param=RESUME)


def _resumed(request: Request, last: str) -> Response:
    """The rest of a stream. Raises NotStored for one that has ended for long, or is another key's."""
    record: RequestRecord = request.scope["noria.record"]
    id, colon, number = last.partition(":")
    if not colon or (number and not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS)):
        message = f"the header {LAST} must be an event's id, REQUEST:NUMBER, got {quoted(last)}"
        raise InvalidRequest(message, param=LAST)
    resumable: Resumable | None = request.app.state.noria.ongoing.found.get(_key(record, id))
    if resumable is None:
        raise NotStored("stream", id)
    after, n_events = int(number or -1), resumable.ongoing.recording.n_events
    if after >= n_events:
        message = f"the header {LAST} must name an event of the stream, which has {n_events}, got {quoted(last)}"
        raise InvalidRequest(message, param=LAST)
    return resumable.read(record, after)


def _key(record: RequestRecord, id: str) -> tuple[str, str]:
    """The owner and the name of a stream. Clients choose ids, and none is that of a response in the background.

    An id of another endpoint has other events.
    """
    return record.owner, f"stream {record.route} {id}"


async def _numbered(updates: AsyncIterator[list[bytes]], id: str) -> AsyncIterator[list[bytes]]:
    """The frames with their ids."""
    number = 0
    async for frames in updates:
        yield [b"id: %s:%d\n%b" % (id.encode(), number + at, frame) for at, frame in enumerate(frames)]
        number += len(frames)
