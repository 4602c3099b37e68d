"""The common walk of a completion and a chat request: admit, tokenize, submit, then stream or wait."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import orjson
from fastapi import Request
from starlette.responses import Response

from service.api.admission import State
from service.api.openai.shape import Shape
from service.api.orders import order_late
from service.generation.choice import Delta, joined
from service.generation.generation import Generation, Usage
from service.generation.order import Order
from service.generation.served import ServedModel
from service.http.middleware import RequestRecord
from service.http.sse import EventStream, Json, while_connected
from service.logs import hashed
from service.schema.generation import GenerationBody

LARGE = 512
"""Answers of so many logprobs, or numbers of embeddings, are written off the event loop."""


class Asked(Protocol):
    """What the walk itself reads of a body."""

    model: str | None

    @property
    def end_user(self) -> str | None:
        """Who asked, as the client calls them."""
        ...


class Streamable(Asked, Protocol):
    stream: bool | None


async def answer(
    request: Request,
    body: Streamable,
    make_order: Callable[[ServedModel], Order],
    make_shape: Callable[[ServedModel, str], Shape],
) -> Response:
    """The response to a generation request. All that can be refused is refused here, before any status is sent."""
    with ExitStack() as stack:
        served, generation = await started(stack, request, body, make_order)
        shape = make_shape(served, body.model or served.names[0])
        if body.stream:
            expired = request.app.state.noria.admission.expired
            return EventStream(_frames(generation, shape), stack.pop_all(), expired, shape)
        return await gathered(request, generation, shape.whole)


async def started(
    stack: ExitStack, request: Request, body: Asked, make_order: Callable[[ServedModel], Order]
) -> tuple[ServedModel, Generation]:
    """The order in the engine's hands, and a place among the requests in flight; both end with the stack."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    record.user = hashed(body.end_user)
    stack.enter_context(state.admission.admitted())
    served = state.admission.require(body.model)
    order = await _ordered(state, served, body, make_order, record.started)
    generation = Generation(order, state.client, served.tokenizer, state.metrics, record)
    return served, stack.enter_context(generation)


async def _ordered(
    state: State, served: ServedModel, body: Asked, make_order: Callable[[ServedModel], Order], started: float
) -> Order:
    """The order, checked; an empty one if its time was up before. `started` is when the request came."""
    timeout = body.timeout if isinstance(body, GenerationBody) else None
    try:
        async with asyncio.timeout(None if timeout is None else started + timeout - time.perf_counter()):
            order = await state.admission.off_loop(lambda: make_order(served))
            await state.grammars.check(served, order)
            return order
    except TimeoutError:
        assert isinstance(body, GenerationBody)  # nobody else has a deadline
        return order_late(body)


async def gathered(
    request: Request, generation: Generation, whole: Callable[[Sequence[Delta], Usage], Json]
) -> Response:
    """The plain answer, once every choice is complete."""
    state: State = request.app.state.noria
    expired = state.admission.expired
    parts = await while_connected(request.receive, expired, _collect(generation))
    timings = generation.timings()

    def content() -> bytes:
        return orjson.dumps(whole(parts, generation.usage) | {"timings": timings})

    size = sum(len(part.scored) + len(part.prompt_logprobs or ()) + len(part.embedding) for part in parts)
    return Response(
        content() if size < LARGE else await state.admission.off_loop(content), media_type="application/json"
    )


async def _frames(generation: Generation, shape: Shape) -> AsyncIterator[bytes]:
    usage = generation.usage
    unopened = {choice.index for choice in generation.choices}
    unfinished = len(generation.choices)
    async for choice, delta in generation.events():
        frames: list[Json] = []
        if choice.index in unopened:
            unopened.remove(choice.index)
            frames += shape.opening(choice.index, usage)
        frames += shape.chunks(choice.index, delta, usage)
        if delta.finish is not None:
            unfinished -= 1
            if not unfinished:
                frames += shape.closing(usage)
                frames[-1]["timings"] = generation.timings()
        yield b"".join(map(shape.frame, frames))


async def _collect(generation: Generation) -> list[Delta]:
    """One whole delta a choice that is answered with, in their order."""
    parts: list[list[Delta]] = [[] for _ in generation.choices]
    async for choice, delta in generation.events():
        parts[choice.index].append(delta)
    return [joined(parts[choice.index]) for choice in generation.best()]
