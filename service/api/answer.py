"""The common walk of a completion and a chat request: admit, tokenize, submit, then stream or wait."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import orjson
from fastapi import Request
from starlette.responses import Response

from service.admission import State
from service.choice import Delta, Order, joined
from service.generation import Generation
from service.logs import hashed
from service.middleware import RequestRecord
from service.response_shapes import Shape
from service.schemas import GenerationBody
from service.served import ServedModel
from service.sse import EventStream, frame, while_connected

MANY_SCORES = 512
"""Logprobs of as many tokens are written off the event loop."""


async def answer(
    request: Request,
    body: GenerationBody,
    make_order: Callable[[ServedModel], Order],
    make_shape: Callable[[ServedModel, str], Shape],
) -> Response:
    """The response to a generation request. All that can be refused is refused here, before any status is sent."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    record.user = hashed(body.end_user)
    with ExitStack() as stack:
        stack.enter_context(state.admission.admitted())
        served = state.admission.require(body.model)
        order = await state.admission.off_loop(lambda: make_order(served))
        generation = Generation(order, state.client, served.tokenizer, state.metrics, record)
        stack.enter_context(generation)
        shape = make_shape(served, body.model or served.names[0])
        expired = state.admission.expired
        if body.stream:
            return EventStream(_frames(generation, shape, body.include_usage), stack.pop_all(), expired)
        parts = await while_connected(request.receive, expired, _collect(generation))

        def whole() -> bytes:
            return orjson.dumps(shape.whole(parts, generation.usage))

        n_scores = sum(len(part.scored) + len(part.prompt_logprobs or ()) for part in parts)
        content = whole() if n_scores < MANY_SCORES else await state.admission.off_loop(whole)
        return Response(content, media_type="application/json")


async def _frames(generation: Generation, shape: Shape, include_usage: bool) -> AsyncIterator[bytes]:
    unopened = {choice.index for choice in generation.choices}
    async for choice, delta in generation.events():
        frames = shape.chunks(choice.index, delta)
        if choice.index in unopened:
            unopened.remove(choice.index)
            if opening := shape.opening(choice.index):
                frames.insert(0, opening)
        yield b"".join(map(frame, frames))
    if include_usage:
        yield frame(shape.usage_chunk(generation.usage))


async def _collect(generation: Generation) -> list[Delta]:
    """One whole delta a choice that is answered with, in their order."""
    parts: list[list[Delta]] = [[] for _ in generation.choices]
    async for choice, delta in generation.events():
        parts[choice.index].append(delta)
    return [joined(parts[choice.index]) for choice in generation.best()]
