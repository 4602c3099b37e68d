"""The requests in flight by their ids, and the latest that have ended: how they stand, and their end by a client."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.access.record import RequestRecord
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.picture import Picture, Reason, SequenceShape
from service.errors.errors import Cancelled
from service.generation.choice import Choice
from service.generation.generation import Generation

log = logging.getLogger("noria.request")
T = TypeVar("T")
MAX_ENDED = 256
"""Requests that are remembered after their end."""
LOOK_INTERVAL = 0.05
"""The least number of seconds between two looks at the engine for the sake of single requests."""
LOOK_SECONDS = 5.0
"""Seconds that a client waits for a look."""
WaitReason = Literal[Reason, "loading", "memory"]
"""The reason why a request waits: for the engine, until its model is loaded, or until there is memory to load it."""
State = Literal["decode", "prompt", "waiting", "preempted", "preparing", "finished"]
ORDER: tuple[str, ...] = get_args(State)
"""The state of a request is the first of these that one of its choices has."""


class Estimate(TypedDict):
    """Seconds from now."""

    seconds: float


class ChoiceFacts(TypedDict):
    """One choice. `place` counts from 1 in the queue; null if it does not wait. `reason` says why it waits.

    `sequence` is its id in the events of the engine.
    """

    index: int
    sequence: int
    state: State
    place: int | None
    reason: Reason | None
    computed_tokens: int
    generated_tokens: int


class RequestFacts(TypedDict):
    """One request, its key's name, its client's address, the name by which it calls its model, and that one's first.

    `held_tokens` are the tokens of all its choices in the KV cache. `place` and `reason` are those of its first choice
    that waits, if none is computed. `start` is the place divided by the rate at which requests finish; null without a
    place. `outcome` comes with the end. `same_id` counts the key's requests in flight with this id, of which
    `GET /v1/requests/{id}` has the newest.
    """

    id: str
    object: Literal["request"]
    path: str
    key: str | None
    client: str | None
    model: str | None
    root: str | None
    state: State
    age_seconds: float
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int
    held_tokens: int
    place: int | None
    reason: WaitReason | None
    start: Estimate | None
    outcome: str | None
    choices: list[ChoiceFacts]
    same_id: int


class RequestList(TypedDict):
    """All requests in flight. Those that hold most tokens come first, of others the oldest."""

    object: Literal["list"]
    data: list[RequestFacts]


class Cancellation(TypedDict):
    """The number of requests with the id that were cancelled."""

    id: str
    object: Literal["request.cancelled"]
    cancelled: int


class LiveRequest:
    """A request in flight. `generation` is set once it is tokenized.

    `has_reason`: its API has a finish reason for requests that are cut short. Others end with an error.
    """

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.has_reason = False
        self.generation: Generation | None = None
        self.cancelled = ""
        self._waiting: asyncio.Task[Any] | None = None

    @property
    def waits_for(self) -> WaitReason | None:
        """Return why its model does not take it yet."""
        return None

    def seconds_to_start(self, place: int) -> float:
        """Estimate when the sequence at a place of its model's queue starts."""
        return 0.0

    @property
    def begun(self) -> bool:
        """Return whether the engine computes a part of it, or did."""
        return self.generation is not None and any(choice.admitted is not None for choice in self.generation.choices)

    def begin(self, generation: Generation) -> None:
        """Take the generation. If the request is cancelled already, so is the generation."""
        self.generation = generation
        if self.cancelled:
            self._end()

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, for which the request waits. Raises Cancelled if a client cancels it."""
        task = self._waiting = asyncio.ensure_future(work)
        if self.cancelled:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
            self.record.outcome = "abort"
            raise Cancelled(self.cancelled) from None
        finally:
            self._waiting = None

    def cancel(self, how: str, by: str | None) -> None:
        """End all choices, or the wait for the model. A request that is being tokenized ends as soon as it is."""
        self.cancelled = how
        log.info("cancelled", extra={"fields": {"id": self.record.id, "key": self.record.tenant or None, "by": by}})
        self._end()

    def end_with_key(self) -> None:
        """Cancel the request if its key has ended."""
        if self.record.has_ended and not self.cancelled:
            self.cancel("because its key has ended", "the key file")

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self.generation is not None:
            self.generation.cancel(None if self.has_reason else Cancelled(self.cancelled))


class LiveRequests:
    """All requests in flight, the oldest first. Several may have one id, which clients may choose. Owner None: any."""

    def __init__(self) -> None:
        self._live: dict[LiveRequest, None] = {}
        self._ended: deque[RequestRecord] = deque(maxlen=MAX_ENDED)
        self._looks: dict[EngineClient, SharedLook] = {}

    @contextmanager
    def serving(self, live: LiveRequest) -> Iterator[None]:
        self._live[live] = None
        live.end_with_key()
        try:
            yield
        finally:
            del self._live[live]
            self._ended.append(live.record)

    def find(self, owner: str | None, request_id: str) -> list[LiveRequest]:
        """Return the owner's requests in flight with this id, the oldest first."""
        return [live for live in self if live.record.id == request_id and owner in (None, live.record.owner)]

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter([*self._live])

    def end_those_of_ended_keys(self) -> None:
        """Cancel the requests of keys whose entry says that they have ended."""
        for live in self:
            live.end_with_key()

    def ended(self, owner: str | None, request_id: str) -> RequestRecord | None:
        """Return the record of the latest request with this id that has ended, if it is remembered."""
        named = (record for record in reversed(self._ended) if record.id == request_id)
        return next((record for record in named if owner in (None, record.owner)), None)

    async def facts(self, live: LiveRequest) -> RequestFacts:
        """Return the facts of a request, with what its engine knows of it."""
        picture = None
        if live.generation is not None:
            sequences = [choice.mailbox.id for choice in live.generation.choices]
            picture = await self.look(live.generation.client, sequences)
        return live_facts(live, picture, len(self.find(live.record.owner, live.record.id)))

    async def look(self, client: EngineClient, ids: Collection[int]) -> Picture | None:
        """Look at the sequences that a client's engine has of these, and others. Many calls at a time are one look.

        None if no engine serves, or if it is in a long step.
        """
        if client not in self._looks:
            look = self._looks[client] = SharedLook()
            look.task = asyncio.ensure_future(self._look_soon(client, look))
            look.task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits
        look = self._looks[client]
        look.ids.update(ids)
        assert look.task is not None
        with suppress(TimeoutError, EngineUnavailable, EngineDied):
            return await asyncio.wait_for(asyncio.shield(look.task), LOOK_SECONDS)
        return None

    async def _look_soon(self, client: EngineClient, look: "SharedLook") -> Picture:
        await asyncio.sleep(LOOK_INTERVAL)
        del self._looks[client]
        return await client.look(sorted(look.ids))


@dataclass(slots=True)
class SharedLook:
    """One look at an engine, and the sequences that it is for."""

    ids: set[int] = field(default_factory=set)
    task: asyncio.Task[Picture] | None = None


def live_facts(live: LiveRequest, picture: Picture | None, same_id: int) -> RequestFacts:
    """Return the facts of a request. `picture` has its sequences in the engine, if that has answered."""
    generation = live.generation
    unseen: State = "decode" if picture is None else "finished"
    picture = picture or Picture()
    found, places = {item.id: item for item in picture.sequences}, dict(picture.places)
    choices = [
        _choice(item, found.get(item.mailbox.id), places.get(item.mailbox.id), unseen)
        for item in (generation.choices if generation is not None else ())
    ]
    states: list[State] = [item["state"] for item in choices]
    state: State = min(states, key=ORDER.index, default="preparing")
    first = next((item for item in choices if item["state"] == state), None)
    facts = recorded_facts(live.record, state, same_id)
    if generation is not None:
        facts["generated_tokens"] = sum(item["generated_tokens"] for item in choices)
        facts["held_tokens"] = sum(item["computed_tokens"] for item in choices)
        facts["cached_tokens"] = generation.meter.usage.cached if live.begun else None
    place, reason = (None, live.waits_for) if first is None else (first["place"], first["reason"])
    start: Estimate | None = None if place is None else {"seconds": round(live.seconds_to_start(place), 3)}
    return facts | {"choices": choices, "place": place, "reason": reason, "start": start}


def recorded_facts(record: RequestRecord, state: State = "finished", same_id: int = 0) -> RequestFacts:
    """Return what the record of a request has. Without a state it has ended."""
    return {
        "id": record.id,
        "object": "request",
        "path": record.path,
        "key": record.tenant or None,
        "client": record.client,
        "model": record.model or record.served,
        "root": record.served,
        "state": state,
        "age_seconds": round(time.perf_counter() - record.started, 3),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.generation.cached_tokens,
        "generated_tokens": record.generation.generated_tokens or 0,
        "held_tokens": 0,
        "place": None,
        "reason": None,
        "start": None,
        "outcome": record.outcome,
        "choices": [],
        "same_id": same_id,
    }


def _choice(choice: Choice, item: SequenceShape | None, place: int | None, unseen: State) -> ChoiceFacts:
    """Return the facts of a choice. Without `item` it is done (`unseen`), on its way, or waits for another engine."""
    waits = choice.mailbox.waits or choice.admitted is None
    state: State = item.state if item is not None else "waiting" if waits else unseen
    return {
        "index": choice.index,
        "sequence": choice.mailbox.id,
        "state": state,
        "place": place,
        "reason": None if item is None else item.reason,
        "computed_tokens": 0 if item is None else item.computed,
        "generated_tokens": len(choice.sampled) if item is None else item.generated,
    }
