"""The steps of every generation request: admit, tokenize, submit, then stream the answer or wait for all of it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol, TypeVar

import orjson
from fastapi import Request
from starlette.responses import Response

from service.access.record import RequestRecord
from service.api.admission import State
from service.api.images import Pending, then
from service.api.lanes import SMALL_BYTES
from service.api.orders import order_late
from service.api.writing import written
from service.engine.mailbox import EngineDied
from service.errors.errors import InvalidRequest
from service.generation.choice import Delta, joined
from service.generation.generation import Generation
from service.generation.order import Order
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import EventStream, Framing, Json, while_connected
from service.logs import hashed
from service.schema.generation import GenerationBody

log = logging.getLogger("noria.request")

T = TypeVar("T")
Answer = TypeVar("Answer", bound=Mapping[str, object])

LARGE = 512
"""Answers with this many logprobs, or numbers of embeddings, are written off the event loop."""
LOGPROB_BYTES = 64
"""About the JSON of one."""


class Submittable(Protocol):
    """A request body that can make an order for the engine."""

    model: str | None

    @property
    def end_user(self) -> str | None:
        """The client's name for its user."""
        ...


class Streamable(Submittable, Protocol):
    stream: bool | None


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


async def answer(
    request: Request,
    body: Streamable,
    make_order: Callable[[ServedModel], Order | Pending[Order]],
    make_shape: Callable[[ServedModel, str], Shape],
) -> Response:
    """The response to a generation request. Raises every refusal before a status is sent."""
    with ExitStack() as stack:
        served, generation = await submit(stack, request, body, make_order)
        shape = make_shape(served, body.model or served.names[0])
        if body.stream:
            request.scope["noria.record"].streams = True
            expired = request.app.state.noria.admission.expired
            return EventStream(_stream_frames(generation, shape), stack.pop_all(), expired, shape)
        return await whole_response(request, generation, shape.whole)


async def submit(
    stack: ExitStack, request: Request, body: Submittable, make_order: Callable[[ServedModel], Order | Pending[Order]]
) -> tuple[ServedModel, Generation]:
    """Admit the request and submit it to the engine. Closing the stack aborts it and ends its admission."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    assert record.policy.generates, f"the route of {record.path} must declare an operation"
    record.user = hashed(body.end_user)
    record.shares_cache = state.settings.cache_isolation == "none"
    if isinstance(body, GenerationBody):
        _check_priority(body.options.priority, record)
    stack.enter_context(state.admission.admitted(record.tenant))
    live = stack.enter_context(state.requests.serving(record, has_reason=isinstance(body, GenerationBody)))
    served = state.admission.require(body.model)
    record.model = body.model or served.names[0]
    if served.adapter is not None:
        record.adapter = served.adapter.name
        stack.enter_context(state.admission.adapters.using(served.adapter))
    state.admission.check_backlog(record.tenant)
    ordered = _ordered(state, served, body, make_order, record)
    order = await while_connected(request.receive, state.admission.expired, ordered)
    log.debug("tokenized", extra={"fields": {"id": record.id}})
    state.admission.check_backlog(record.tenant)  # others may have come while it was tokenized
    generation = Generation(order, state.client, served.tokenizer, state.metrics, record, state.admission.backlog)
    live.begin(generation)
    await generation.submit()
    return served, stack.enter_context(generation)


def _check_priority(priority: int, record: RequestRecord) -> None:
    """Raise InvalidRequest for a priority that the request's key, or a request without one, may not send."""
    least = 0 if record.key is None else record.key.entry.priority
    if priority < least:
        whose = "without a key" if record.key is None else f"for the key {record.tenant}"
        how = "the server's --api-key-file can allow lower values to a key"
        raise InvalidRequest(f"priority must be at least {least} {whose}, got {priority}: {how}", param="priority")


async def _ordered(
    state: State,
    served: ServedModel,
    body: Submittable,
    make_order: Callable[[ServedModel], Order | Pending[Order]],
    record: RequestRecord,
) -> Order:
    """The checked order; an empty one if the request's time ends before it is ready."""
    timeout = body.timeout if isinstance(body, GenerationBody) else None
    limit = asyncio.timeout(None if timeout is None else record.started + timeout - time.perf_counter())
    try:
        async with limit:
            order = await _worked(state, served, lambda: make_order(served), record)
            await state.grammars.check(served, order)
            return order if served.adapter is None else replace(order, adapter=served.adapter.number)
    except TimeoutError:
        if not limit.expired():  # it is the error of some call, not the end of the request's time
            raise
        assert isinstance(body, GenerationBody)  # no other body has a deadline
        return order_late(body)


async def _worked(state: State, served: ServedModel, work: Callable[[], T | Pending[T]], record: RequestRecord) -> T:
    """The result of `work` on the work thread. If it is pending, its images are decoded in the meantime."""
    size = record.body_bytes
    result = await state.admission.work.run(work, size)
    if not isinstance(result, Pending):
        return result
    assert served.info.images is not None, "a model without images refuses them at once"
    with state.admission.holding_body(record.sender) as take:  # it waits for images of others
        take(max(0, size - SMALL_BYTES))
        images = await state.images.decode(result.sources, served.info.images)
        make = result.make
        return await state.admission.work.run(lambda: make(images), size)


async def whole_response(
    request: Request,
    generation: Generation,
    write: Callable[[Sequence[Delta], Usage, Timings], Mapping[str, object]],
) -> Response:
    """The plain response, once every choice is complete."""
    state: State = request.app.state.noria
    parts = await while_connected(request.receive, state.admission.expired, _collect(generation))
    timings = generation.timings()

    def content(dumps: Callable[[object], bytes]) -> bytes:
        return dumps(write(parts, generation.usage, timings))

    size = sum(len(part.scored) + len(part.prompt_logprobs or ()) + len(part.embedding) for part in parts)
    if size < LARGE:
        return Response(content(orjson.dumps), media_type="application/json")
    work = state.admission.work.run(lambda: content(written), size * LOGPROB_BYTES)
    whole = await while_connected(request.receive, state.admission.expired, work)
    return Response(whole, media_type="application/json")


async def computed_response(
    request: Request, model: str | None, compute: Callable[[ServedModel], Answer | Pending[Answer]]
) -> Response:
    """The response whose JSON is computed without the engine, on the tokenizing thread."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    with state.admission.admitted(record.tenant):
        served = state.admission.require(model)
        computed = _worked(state, served, lambda: then(compute(served), written), record)
        content = await while_connected(request.receive, state.admission.expired, computed)
    return Response(content, media_type="application/json")


async def _stream_frames(generation: Generation, shape: Shape) -> AsyncIterator[bytes]:
    """The frames of a stream. If the engine dies before the first, the request is submitted once more."""
    begun = False
    try:
        async for frames in _frames(generation, shape):
            begun = True
            yield frames
    except EngineDied:
        if begun:
            raise
        await generation.resubmit()
        async for frames in _frames(generation, shape):
            yield frames


async def _frames(generation: Generation, shape: Shape) -> AsyncIterator[bytes]:
    usage = generation.usage
    unopened = {choice.index for choice in generation.choices}
    unfinished = len(generation.choices)
    async for choice, delta in generation.events():
        frames: list[Json] = []
        if choice.index in unopened:
            unopened.remove(choice.index)
            frames += shape.opening(choice.index, replace(usage, completion=0, reasoning=0))
        frames += shape.chunks(choice.index, delta, usage)
        if delta.finish is not None:
            unfinished -= 1
            if not unfinished:
                frames += shape.closing(usage)
                frames[-1]["timings"] = generation.timings()
        yield b"".join(map(shape.frame, frames))


async def _collect(generation: Generation) -> list[Delta]:
    """One whole delta for each choice of the answer, in their order. Survives one death of the engine."""
    try:
        return await _whole(generation)
    except EngineDied:
        await generation.resubmit()
        return await _whole(generation)


async def _whole(generation: Generation) -> list[Delta]:
    parts: list[list[Delta]] = [[] for _ in generation.choices]
    async for choice, delta in generation.events():
        parts[choice.index].append(delta)
    return [joined(parts[choice.index]) for choice in generation.best()]
