"""Streams that go on without their clients for a while, and that any replica goes on with after the events sent."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from model.errors import quoted
from service.access.record import LAST, RESUME, RequestRecord
from service.api.call import Answer, Call
from service.api.places import Place, Places, Sealer
from service.api.run import SIGN_SECONDS, Key, Reader, Run
from service.errors.errors import ApiError, InvalidRequest, NotStored
from service.schema.fields import Body
from service.schema.generation import StreamBody

B = TypeVar("B", bound=Body)
Handler = Callable[[Call, B], Awaitable[Answer]]


def resumable(handler: Handler[B]) -> Handler[B]:
    """Return a handler whose streams a client may resume, if it says so in a header."""

    async def resume_or_handle(call: Call, body: B) -> Answer:
        value, last = call.request.headers.get(RESUME), call.request.headers.get(LAST)
        if value not in (None, "0", "1"):
            raise InvalidRequest(f"the header {RESUME} must be 0 or 1, got {quoted(value)}", param=RESUME)
        if last is None and value != "1":
            return await handler(call, body)
        if isinstance(body, StreamBody) and (missing := body.missing_to_resume):
            name = RESUME if last is None else LAST
            raise InvalidRequest(f"the header {name} needs {missing}", param=name)
        if last is None:
            return reading(call, _begun(call, handler, body, call.record.id), -1, numbered=True)
        if (found := _found(call, last)) is not None:
            call.generates_nothing()
            return reading(call, *found, numbered=True)
        return reading(call, _continued(call, handler, body, last), -1, numbered=True)

    return resume_or_handle


def reading(call: Call, run: Run, after: int, *, numbered: bool = False) -> Answer:
    """Return the events of a run after number `after`, to its end. A `numbered` run has events with ids."""

    async def read() -> None:
        call.open(Reader(run, numbered=numbered), SIGN_SECONDS if numbered else None)
        with run.reading() as recording:
            async for frames in recording.read(after):
                await call.sink.write(frames)

    return read


def _begun(call: Call, handler: Handler[B], body: B, stream: str, place: Place | None = None) -> Run:
    """Return a run of the handler, which waits for readers as long as the server says. It goes on from a `place`."""
    run = Run(call.state.runs, _key(call.record, stream), call.state.settings.resume_seconds)
    work = call.detached(run)
    work.places = Places(_sealer(call), stream, place)

    async def failed(error: ApiError) -> Exception:
        return error

    call.hand_over(work, work.sent(handler(work, body)), failed)
    return run


def _found(call: Call, last: str) -> tuple[Run, int] | None:
    """Return the run of an event that is recorded here, and the event's number; None if no run here has it."""
    stream, colon, place = last.partition(":")
    if not colon:
        message = f"the header {LAST} must be an event's id, REQUEST:PLACE, got {quoted(last)}"
        raise InvalidRequest(message, param=LAST)
    if (run := call.state.runs.found.get(_key(call.record, stream))) is None:
        return None
    number = run.recording.find(run.framing.identified(b"", last.encode())) if place else -1
    return None if number is None else (run, number)


def _continued(call: Call, handler: Handler[B], body: B, last: str) -> Run:
    """Return a run that computes an answer again, from the place of an event on. Raises NotStored for another seal."""
    if (place := _sealer(call).read(last)) is None:
        raise NotStored("stream", last.partition(":")[0])
    if call.record.key is not None:
        call.record.place.enter_context(call.record.key.computes())
    return _begun(call, handler, body, place.stream, place)


def _sealer(call: Call) -> Sealer:
    return Sealer(call.state.resume_key, call.record)


def _key(record: RequestRecord, id: str) -> Key:
    """Return the owner and the name of a stream. Clients choose ids, and none is that of a background response.

    An id of another endpoint has other events.
    """
    return record.owner, f"stream {record.route} {id}"
