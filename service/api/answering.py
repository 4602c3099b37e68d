"""The steps of every generation request: admit, tokenize, submit, then stream the answer or wait for all of it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

import orjson
from fastapi import Request
from starlette.responses import Response

from service.access.record import RequestRecord
from service.api.lanes import SMALL_BYTES, written
from service.api.large import LargeAnswer
from service.api.ongoing import never
from service.api.prompt import Make, on_thread
from service.api.state import State, hosted
from service.engine.messages import FINISHES
from service.errors.dialects import Dialect
from service.errors.errors import ApiError, Cancelled, InvalidRequest
from service.generation.choice import Delta, joined
from service.generation.generation import Generation
from service.generation.request import ModelRequest, ServedModel, Timings, Usage, late_request
from service.hosting.hosted import HostedModel, ModelChanged
from service.http.sse import ClientGone, Comments, EventStream, Framing, Json, PlainEvents, TypedEvents, while_connected
from service.observe.view.requests import LiveRequest
from service.receipts.maker import AnswerReceipts
from service.receipts.receipt import Signed
from service.schema.fields import ModelBody
from service.schema.generation import GenerationBody, StreamBody

log = logging.getLogger("noria.request")

LARGE = 512
"""Answers with this many logprobs, or numbers of embeddings, are written off the event loop."""
LOGPROB_BYTES, NUMBER_BYTES = 64, 12
"""About the JSON of a log probability, and of a number of an embedding."""


class Shape(Framing, Protocol):
    """Writes the answer of one request in its API's JSON, whole or as events. `usage` is that of the request so far."""

    def opening(self, index: int, usage: Usage) -> list[Json]:
        """The events before a choice's first, with a usage that counts no generated tokens."""
        ...

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]: ...

    def closing(self, usage: Usage) -> list[Json]:
        """The events after the last choice's last."""
        ...

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> Mapping[str, object]:
        """The answer of a plain request; `parts` has one complete delta a choice."""
        ...


Save = Callable[[Sequence[Json]], Awaitable[None]]
"""Stores an answer before the client has its end: the whole one, or the events of the last update of its stream."""


async def answer(
    request: Request,
    body: StreamBody,
    make: Make[ModelRequest],
    make_shape: Callable[[ServedModel, str], Shape],
    save: Save | None = None,
    first: Framing | None = None,
) -> Response:
    """The response to a generation request. Raises every refusal before a status is sent.

    If the model of a stream is not loaded yet, a refusal may come as an event, because signs of life are sent while the
    stream waits. `first` is the framing until the model is loaded, where it is not that of events.
    """
    state: State = request.app.state.noria
    with ExitStack() as stack:
        if body.stream:
            frames, framing = await begin_stream(stack, request, body, make, make_shape, save, first)
            return EventStream(frames, stack.pop_all(), state.drain.expired, framing)
        served, generation, receipts = await submit_signed(stack, request, body, make)
        shape = make_shape(served, body.model or served.names[0])
        return await whole_response(request, generation, shape.whole, receipts, save)


async def begin_stream(
    stack: ExitStack,
    request: Request,
    body: StreamBody,
    make: Make[ModelRequest],
    make_shape: Callable[[ServedModel, str], Shape],
    save: Save | None = None,
    first: Framing | None = None,
) -> tuple[AsyncIterator[list[bytes]], Framing]:
    """The frames of a stream, and what frames them. `stack` gets the admission. Raises and waits as `answer`."""
    record: RequestRecord = request.scope["noria.record"]
    record.streams = True
    if hosted(request, body.model).waits_for is not None:
        framing, guard = LateFraming(record.policy.dialect, first), stack.enter_context(ExitStack())
        return _late_frames(guard, request, body, make, make_shape, save, framing), framing
    served, generation, receipts = await submit_signed(stack, request, body, make)
    shape = make_shape(served, body.model or served.names[0])
    return stream_frames(generation, shape, receipts, save), shape


class LateFraming:
    """Frames a stream by `first`, and by its `shape` once the model is loaded."""

    def __init__(self, dialect: Dialect, first: Framing | None) -> None:
        self.shape = first
        self._dialect = dialect

    @property
    def done(self) -> bytes:
        return b"" if self.shape is None else self.shape.done

    def frame(self, data: Json) -> bytes:
        if self.shape is not None:
            return self.shape.frame(data)
        return TypedEvents().frame(data) if "type" in data else PlainEvents().frame(data)

    def failure(self, error: ApiError) -> Json:
        return self._dialect.write(error) if self.shape is None else self.shape.failure(error)

    def keep_alive(self) -> tuple[bytes, float]:
        return Comments().keep_alive() if self.shape is None else self.shape.keep_alive()


async def _late_frames(
    guard: ExitStack,
    request: Request,
    body: StreamBody,
    make: Make[ModelRequest],
    make_shape: Callable[[ServedModel, str], Shape],
    save: Save | None,
    framing: LateFraming,
) -> AsyncIterator[list[bytes]]:
    """The frames of a stream, which wait for the model first. `guard` gets the admission."""
    unread = Request(request.scope, receive=never)  # the stream itself sees a client that leaves
    served, generation, receipts = await submit_signed(guard, unread, body, make)
    framing.shape = shape = make_shape(served, body.model or served.names[0])
    async for frames in stream_frames(generation, shape, receipts, save):
        yield frames


async def submit_signed(
    stack: ExitStack, request: Request, body: StreamBody, make: Make[ModelRequest]
) -> tuple[ServedModel, Generation, AnswerReceipts | None]:
    """As `submit`, for an answer that may have receipts, with those that it gets."""
    record: RequestRecord = request.scope["noria.record"]
    hosted(request, body.model).receipts.check(body.receipt)
    model, served, generation = await submit(stack, request, body, make)
    return served, generation, model.receipts.of_answer(body.receipt, served, generation, record)


async def submit(
    stack: ExitStack, request: Request, body: ModelBody, make: Make[ModelRequest]
) -> tuple[HostedModel, ServedModel, Generation]:
    """Admit the request and submit it to the engine. Closing the stack aborts it and ends its admission."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    assert record.policy.generates, f"the route of {record.path} must declare an operation"
    record.name_user(body.end_user)
    record.shares_cache = state.settings.cache_isolation == "none"
    if isinstance(body, GenerationBody):
        _check_priority(body.priority or 0, record)
    live = stack.enter_context(state.requests.serving(record, has_reason=isinstance(body, GenerationBody)))
    model, served = await admit(stack, request, body.model, live)
    made = await while_connected(request.receive, state.drain.expired, _made(state, record, served, body, make))
    log.debug("tokenized", extra={"fields": {"id": record.id}})
    model.admission.check_backlog(record.tenant)  # others may have come while it was tokenized
    generation = Generation(made, model.client, served.tokenizer, model.metrics, record, model.admission.backlog)
    live.begin(generation)
    record.params, record.n_choices = made.params, made.n_choices
    record.ignored += made.ignored
    await generation.submit()
    record.submitted = generation.submitted
    record.charge_prompt(generation.usage.prompt)
    return model, served, stack.enter_context(_recorded(generation, record))


async def admit(
    stack: ExitStack, request: Request, name: str | None, live: LiveRequest | None = None
) -> tuple[HostedModel, ServedModel]:
    """The model that a request names, once it is loaded. Closing the stack ends the admission.

    Raises ModelNotFound, what `Admission.admitted` raises, and Unavailable if the model cannot be loaded. `live` tells
    meanwhile what the request waits for; if a client cancels it, that raises Cancelled.
    """
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    model = hosted(request, name)
    record.served = model.name
    if live is not None:
        live.waits_for, live.seconds_to_start = lambda: model.waits_for, model.admission.seconds_to_start
    try:
        with model.counted_waiting(record.tenant):
            while model.entry.on_demand and model.waits_for is not None:  # somebody may have unloaded it again
                wait = while_connected(request.receive, state.drain.expired, state.models.until_loaded(model))
                with record.waiting_for_model(lambda: model.wait):
                    await (wait if live is None else live.wait(wait))
            return model, stack.enter_context(model.admission.admitted(record, name))
    except ModelChanged:
        return await admit(stack, request, name, live)


@contextmanager
def _recorded(generation: Generation, record: RequestRecord) -> Iterator[Generation]:
    """Abort at the end what is unfinished, and copy the facts of the end into the record."""
    failure: BaseException | None = None
    try:
        yield generation
    except BaseException as error:
        failure = error
        raise
    finally:
        generation.close()
        usage, finishes = generation.usage, generation.finishes
        record.cached_tokens, record.generated_tokens = usage.cached, usage.completion
        record.reasoning_tokens, record.last_token, record.finishes = usage.reasoning, generation.last_token, finishes
        if failure is None:
            record.outcome = next((name for name in FINISHES if name in finishes), "stop")
        elif isinstance(failure, ClientGone | asyncio.CancelledError | Cancelled):
            record.outcome = "abort"
        else:
            record.outcome, record.failure = "error", type(failure).__name__
            if isinstance(failure, ApiError):
                record.note_error(failure)


def _check_priority(priority: int, record: RequestRecord) -> None:
    """Raise InvalidRequest for a priority that the request's key, or a request without one, may not send."""
    least = 0 if record.key is None else record.key.entry.priority
    if priority < least:
        whose = "without a key" if record.key is None else f"for the key {record.tenant}"
        how = "the server's --api-key-file can allow lower values to a key"
        raise InvalidRequest(f"priority must be at least {least} {whose}, got {priority}: {how}", param="priority")


async def _made(
    state: State, record: RequestRecord, served: ServedModel, body: ModelBody, make: Make[ModelRequest]
) -> ModelRequest:
    """The engine's request, with a grammar that compiles; an empty one if its time ends before it is ready."""
    timeout = body.timeout if isinstance(body, GenerationBody) else None
    limit = asyncio.timeout(None if timeout is None else record.started + timeout - time.perf_counter())
    try:
        async with limit:
            made = await make(state, record, served)
            await state.grammars.check(served, made)
            return made
    except TimeoutError:
        if not limit.expired():  # it is the error of some call, not the end of the request's time
            raise
        assert isinstance(body, GenerationBody)  # no other body has a deadline
        return late_request(body)


async def whole_response(
    request: Request,
    generation: Generation,
    write: Callable[[Sequence[Delta], Usage, Timings], Mapping[str, object]],
    receipts: AnswerReceipts | None = None,
    save: Save | None = None,
) -> Response:
    """The plain response, once every choice is complete."""
    state: State = request.app.state.noria
    collected = _collect(generation, receipts)
    parts, signed = await while_connected(request.receive, state.drain.expired, collected)
    timings = generation.timings()

    def answer() -> Json:
        return {**write(parts, generation.usage, timings), **signed}

    n_logprobs = sum(len(part.scored) + len(part.prompt_logprobs or ()) for part in parts)
    n_numbers = sum(len(part.embedding) for part in parts)
    n_bytes = request.scope["noria.record"].body_bytes  # compaction, echo and receipts repeat the body
    size = n_logprobs * LOGPROB_BYTES + n_numbers * NUMBER_BYTES + n_bytes
    if n_logprobs + n_numbers < LARGE and n_bytes <= SMALL_BYTES:
        whole = answer()
        if save is not None:
            await save([whole])
        return LargeAnswer(orjson.dumps(whole), computed=True)

    async def content() -> bytes:
        whole = await state.work.run(answer, size)
        if save is not None:
            await save([whole])
        return await state.work.run(lambda: written(whole), size)

    written_whole = await while_connected(request.receive, state.drain.expired, content())
    return LargeAnswer(written_whole, computed=True)


async def computed_response(request: Request, model: str | None, make: Make[Mapping[str, object]]) -> Response:
    """The response whose JSON is computed without the engine."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]

    async def content(served: ServedModel) -> bytes:
        answer = await make(state, record, served)
        return await on_thread(lambda served: written(answer))(state, record, served)

    with ExitStack() as stack:
        _, served = await admit(stack, request, model)
        whole = await while_connected(request.receive, state.drain.expired, content(served))
    return LargeAnswer(whole, computed=True)


async def stream_frames(
    generation: Generation, shape: Shape, receipts: AnswerReceipts | None, save: Save | None = None
) -> AsyncIterator[list[bytes]]:
    """The frames of a stream, those of an update together."""
    usage = generation.usage
    unopened = {choice.index for choice in generation.choices}
    unfinished = len(generation.choices)
    async for choice, delta in generation.events():
        if receipts is not None:
            receipts.add(choice, delta)
        events: list[Json] = []
        if len(unopened) == len(generation.choices):
            generation.note_sent()
        if choice.index in unopened:
            unopened.remove(choice.index)
            events += shape.opening(choice.index, replace(usage, completion=0, reasoning=0))
        events += shape.chunks(choice.index, delta, usage)
        if delta.finish is not None:
            unfinished -= 1
            if not unfinished:
                events += shape.closing(usage)
                events[-1]["timings"] = generation.timings()
                events[-1] |= await _signed(receipts)
                if save is not None:
                    await save(events)
        yield [*map(shape.frame, events)]


async def _collect(generation: Generation, receipts: AnswerReceipts | None) -> tuple[list[Delta], Signed]:
    """One whole delta for each choice of the answer, in their order, and receipts."""
    parts: list[list[Delta]] = [[] for _ in generation.choices]
    async for choice, delta in generation.events():
        parts[choice.index].append(delta)
        if receipts is not None:
            receipts.add(choice, delta)
    return [joined(parts[choice.index]) for choice in generation.best()], await _signed(receipts)


async def _signed(receipts: AnswerReceipts | None) -> Signed:
    """What receipts add to an answer, or to the last event of its stream."""
    return {} if receipts is None else {"receipts": await receipts.signed()}
