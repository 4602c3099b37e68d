"""The answers of generation requests, whole or as a stream, and whole answers that no engine computes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson
from starlette.responses import Response

from service.api.call import Answer, Begun, Call
from service.api.lanes import SMALL_BYTES, written
from service.generation.choice import Delta
from service.generation.generation import Generation
from service.generation.request import ModelRequest, continued, late_request
from service.generation.usage import Meter, Timings, Usage
from service.http.sse import Json

log = logging.getLogger("noria.request")
LARGE = 512
"""Answers with this many logprobs, or numbers of embeddings, are written off the event loop."""
LOGPROB_BYTES, NUMBER_BYTES = 64, 12
"""About the JSON of a log probability, and of a number of an embedding."""


class Shape(Begun, Protocol):
    """Writes the answer of one request in its API's JSON, whole or as events. `usage` is that of the request so far."""

    def opening(self, index: int, usage: Usage) -> list[Json]:
        """Return the events before a choice's first, with a usage that counts no generated tokens."""
        ...

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]: ...

    def closing(self, usage: Usage) -> list[Json]:
        """Return the events after the last choice's last."""
        ...

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> Mapping[str, object]:
        """Return the answer of a plain request; `parts` has one complete delta a choice."""
        ...


Save = Callable[[Sequence[Json]], Coroutine[Any, Any, None]]
"""Stores an answer before the client has its end: the whole one, or the events of the last update of its stream."""
Write = Callable[[Sequence[Delta], Usage, Timings], Mapping[str, object]]


async def answered(call: Call, making: Awaitable[ModelRequest], shape: Shape, save: Save | None = None) -> Answer:
    """Make the engine's request, submit it, and return the answer. Only the engine holds its images and audio then."""
    generation = await generated(call, making)
    if not call.record.streams:
        return await whole_response(call, generation, shape.whole, save)
    return partial(stream, call, generation, shape, save)


async def generated(call: Call, making: Awaitable[ModelRequest]) -> Generation:
    """Make the engine's request, and submit it. Raises Overloaded if others came while it was tokenized."""
    made, model, record = _resumed(call, await _made(call, making)), call.model, call.record
    log.debug("tokenized", extra={"fields": {"id": record.id}})
    model.admission.check_backlog(record.tenant)
    meter = Meter(made.submits, model.metrics, record, model.admission.backlog)
    generation = Generation(made, model.client, call.served.tokenizer, meter, record)
    call.begin(generation)
    record.params, record.n_choices = made.params, made.n_choices
    record.ignored += made.ignored
    await generation.submit()
    model.metrics.observe_prompt(meter.usage.prompt)
    record.submitted = meter.submitted
    record.charge_prompt(meter.usage.prompt)
    facts = {"sequences": [choice.mailbox.id for choice in generation.choices], "prompt_tokens": meter.usage.prompt}
    log.debug("submitted", extra={"fields": {"id": record.id, **facts}})
    return generation


def _resumed(call: Call, made: ModelRequest) -> ModelRequest:
    """Return the request that goes on after what the client has. Raises InvalidRequest."""
    if call.resume is not None:
        made = continued(made, call.resume, call.served)
    if call.places is None:
        return made
    exact = call.model.entry.settings.deterministic or "arithmetic" in call.served.info.description
    return call.places.begin(made, call.served, call.record, exact=exact)


async def _made(call: Call, making: Awaitable[ModelRequest]) -> ModelRequest:
    """Return the engine's request, with a grammar that compiles; an empty one if its time ends before."""
    timeout, n_prompts, n_choices = call.late
    limit = asyncio.timeout(None if timeout is None else call.record.started + timeout - time.perf_counter())
    try:
        async with limit:
            made = await making
            await call.state.grammars.check(call.served, made)
            return made
    except TimeoutError:
        if not limit.expired():  # it is the error of some call, not the end of the request's time
            raise
        return late_request(n_prompts, n_choices)
    finally:
        call.release()


async def whole_response(call: Call, generation: Generation, write: Write, save: Save | None = None) -> Response:
    """Return the plain response, once every choice is complete."""
    receipts = call.model.receipts.of_answer(call.receipt, call.served, generation, call.record)
    choices = await generation.whole()
    for choice, delta in choices:
        receipts.add(choice, delta)
    parts, signed = [delta for _, delta in choices], await receipts.signed()
    meter, timings, work = generation.meter, generation.meter.timings(), call.state.work

    def answer() -> Json:
        return {**write(parts, meter.usage, timings), **signed}

    n_logprobs = sum(len(part.scored) + len(part.prompt_logprobs or ()) for part in parts)
    n_numbers = sum(len(part.embedding) for part in parts)
    n_bytes = call.record.body_bytes  # compaction, echo and receipts repeat the body
    size = n_logprobs * LOGPROB_BYTES + n_numbers * NUMBER_BYTES + n_bytes
    small = n_logprobs + n_numbers < LARGE and n_bytes <= SMALL_BYTES
    whole = answer() if small else await work.run(answer, size)
    if save is not None:
        await asyncio.shield(save([whole]))
    content = orjson.dumps(whole) if small else await work.run(lambda: written(whole), size)
    return call.respond(content, computed=True)


async def computed_response(call: Call, answer: Mapping[str, object] | Sequence[Mapping[str, object]]) -> Response:
    """Return the response with an answer that no engine computed."""
    return call.respond(await call.on_lane(lambda: written(answer)), computed=True)


async def stream(call: Call, generation: Generation, shape: Shape, save: Save | None = None) -> None:
    """Write the frames of a stream, those of an update together."""
    receipts = call.model.receipts.of_answer(call.receipt, call.served, generation, call.record)
    usage, n_choices = generation.meter.usage, len(generation.choices)
    unopened, unfinished = {choice.index for choice in generation.choices}, n_choices
    async for choice, delta in generation.events():
        receipts.add(choice, delta)
        if len(unopened) == n_choices:
            generation.note_sent()
        parts: list[tuple[int | None, list[Json]]] = []
        if choice.index in unopened:
            unopened.remove(choice.index)
            parts.append((choice.index, shape.opening(choice.index, replace(usage, completion=0, reasoning=0))))
        if call.places is not None and delta.progress is not None:  # another server may compute other chunks
            parts.append((None, shape.chunks(choice.index, Delta(progress=delta.progress), usage)))
            delta = delta._replace(progress=None)
        if delta:
            parts.append((choice.index, shape.chunks(choice.index, delta, usage)))
        if delta.finish is not None:
            unfinished -= 1
            if not unfinished:
                parts.append((n_choices, shape.closing(usage)))
                events = [event for _, made in parts for event in made]
                events[-1]["timings"] = generation.meter.timings()
                events[-1] |= await receipts.signed()
                if save is not None:
                    await asyncio.shield(save(events))
        frames = [(index, shape.frame(event)) for index, events in parts for event in events]
        if left := _left(call, shape, frames, known=delta.known and delta.finish is None):
            await call.sink.write(left)


def _left(call: Call, shape: Shape, frames: Sequence[tuple[int | None, bytes]], *, known: bool) -> list[bytes]:
    """Return the frames that the client does not have, each with an id if the stream resumes."""
    if call.places is not None:
        return call.places.sent(shape, frames, known=known)
    return [] if known else [frame for _, frame in frames]
