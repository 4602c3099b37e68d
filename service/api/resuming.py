"""Streams that go on without their clients for a while, who resume them after the events that they have."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from model.errors import quoted
from service.access.record import LAST, RequestRecord
from service.api.call import Answer, Call
from service.api.run import Key, Reader, Run
from service.errors.errors import ApiError, InvalidRequest, NotStored
from service.schema.fields import Body
from service.schema.generation import StreamBody

B = TypeVar("B", bound=Body)
Handler = Callable[[Call, B], Awaitable[Answer]]
RESUME = "x-noria-resume"
MAX_DIGITS = 9


def resumable(handler: Handler[B]) -> Handler[B]:
    """Return a handler whose streams a client may resume, if it says so in a header."""

    async def resume_or_handle(call: Call, body: B) -> Answer:
        value, last = call.request.headers.get(RESUME), call.request.headers.get(LAST)
        if value not in (None, "0", "1"):
            raise InvalidRequest(f"the header {RESUME} must be 0 or 1, got {quoted(value)}", param=RESUME)
        if last is None and value != "1":
            return await handler(call, body)
        if not (isinstance(body, StreamBody) and body.stream):
            name = RESUME if last is None else LAST
            raise InvalidRequest(f"the header {name} needs stream true", param=name)
        if last is None:
            return reading(call, _begun(call, handler, body), -1, numbered=True)
        return reading(call, *_found(call, last), numbered=True)

    return resume_or_handle


def refuse_resume(call: Call) -> None:
    """Raise InvalidRequest for a response of the Responses API that wants the events of a chat."""
    if (value := call.request.headers.get(RESUME, "0")) != "0":
        how = "with background true, GET /v1/responses/ID?stream=true&starting_after=NUMBER goes on with a stream"
        raise InvalidRequest(f"the header {RESUME} must be 0 here, got {quoted(value)}: {how}", param=RESUME)


def reading(call: Call, run: Run, after: int, *, numbered: bool = False) -> Answer:
    """Return the events of a run after number `after`, to its end. A `numbered` run has events with ids."""

    async def read() -> None:
        call.open(Reader(run, numbered=numbered))
        with run.reading() as recording:
            async for frames in recording.read(after):
                await call.sink.write(frames)

    return read


def _begun(call: Call, handler: Handler[B], body: B) -> Run:
    """Return a run of the handler, which waits for readers as long as the server says."""
    run = Run(call.state.runs, _key(call.record, call.record.id), call.state.settings.resume_seconds, call.record.id)
    work = call.detached(run)

    async def failed(error: ApiError) -> Exception:
        return error

    call.hand_over(work, work.sent(handler(work, body)), failed)
    return run


def _found(call: Call, last: str) -> tuple[Run, int]:
    """Return the run of an event's id, and the event's number. Raises NotStored for what is gone, or another key's."""
    id, colon, number = last.partition(":")
    if not colon or (number and not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS)):
        message = f"the header {LAST} must be an event's id, REQUEST:NUMBER, got {quoted(last)}"
        raise InvalidRequest(message, param=LAST)
    if (run := call.state.runs.found.get(_key(call.record, id))) is None:
        raise NotStored("stream", id)
    after, n_events = int(number or -1), run.recording.n_events
    if after >= n_events:
        message = f"the header {LAST} must name an event of the stream, which has {n_events}, got {quoted(last)}"
        raise InvalidRequest(message, param=LAST)
    call.generates_nothing()
    return run, after


def _key(record: RequestRecord, id: str) -> Key:
    """Return the owner and the name of a stream. Clients choose ids, and none is that of a background response.

    An id of another endpoint has other events.
    """
    return record.owner, f"stream {record.route} {id}"
