"""The common walk of a completion and a chat request: admit, tokenize, submit, then stream or wait."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Protocol

import orjson
from fastapi import Request
from starlette.responses import Response

from service.admission import State
from service.choice import Delta, Order
from service.generation import Generation
from service.response_shapes import Shape
from service.served import ServedModel
from service.sse import EventStream, Json, while_connected


class Asked(Protocol):
    """What the walk itself reads of a body."""

    model: str | None
    stream: bool | None


async def answer(
    request: Request,
    body: Asked,
    make_order: Callable[[ServedModel], Order],
    make_shape: Callable[[ServedModel, str], Shape],
) -> Response:
    """The response to a generation request. All that can be refused is refused here, before any status is sent."""
    state: State = request.app.state.noria
    with ExitStack() as stack:
        stack.enter_context(state.admission.admitted())
        served = state.admission.require(body.model)
        order = await state.admission.off_loop(lambda: make_order(served))
        generation = Generation(order, state.client, served.tokenizer, state.metrics, request.scope["noria.record"])
        stack.enter_context(generation)
        shape = make_shape(served, body.model or served.names[0])
        expired = state.admission.expired
        if body.stream:
            return EventStream(_frames(generation, shape), stack.pop_all(), expired, shape)
        parts = await while_connected(request.receive, expired, _collect(generation))
        content = shape.whole(parts, generation.usage) | {"timings": generation.timings()}
        return Response(orjson.dumps(content), media_type="application/json")


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
    """One whole delta a choice, in their order."""
    parts: list[list[Delta]] = [[] for _ in generation.choices]
    async for choice, delta in generation.events():
        parts[choice.index].append(delta)
    return [_whole(deltas) for deltas in parts]


def _whole(deltas: list[Delta]) -> Delta:
    return Delta(
        "".join(delta.text for delta in deltas),
        tuple(item for delta in deltas for item in delta.scored),
        deltas[-1].finish,
        deltas[-1].stop,
    )
