"""The JSON of one request in flight."""

import time
from collections.abc import Callable
from typing import Literal, get_args

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.access.record import RequestRecord
from service.engine.picture import Picture, Reason, SequenceShape
from service.generation.choice import Choice
from service.observe.view.requests import LiveRequest

State = Literal["decode", "prompt", "waiting", "preempted", "preparing", "finished"]
ORDER: tuple[str, ...] = get_args(State)
"""The state of a request is the first of these that one of its choices has."""


class Estimate(TypedDict):
    """Seconds from now."""

    seconds: float


class ChoiceFacts(TypedDict):
    """One choice. `place` counts from 1 in the queue; null if it does not wait. `reason` says why it waits."""

    index: int
    state: State
    place: int | None
    reason: Reason | None
    computed_tokens: int
    generated_tokens: int


class RequestFacts(TypedDict):
    """One request. `place` and `reason` are those of its first choice that waits, if none is computed.

    `start` is the place divided by the rate at which requests finish; null without a place. `outcome` comes
    with the end. `same_id` counts the key's requests in flight with this id, of which this is the newest.
    """

    id: str
    object: Literal["request"]
    path: str
    state: State
    age_seconds: float
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int
    place: int | None
    reason: Reason | None
    start: Estimate | None
    outcome: str | None
    choices: list[ChoiceFacts]
    same_id: int


class Cancellation(TypedDict):
    """How many requests with the id were cancelled."""

    id: str
    object: Literal["request.cancelled"]
    cancelled: int


def live_facts(live: LiveRequest, picture: Picture, seconds: Callable[[int], float], same_id: int) -> RequestFacts:
    """Return the facts of a request; `picture` has its sequences in the engine.

    `seconds` estimates when the sequence at a place of the queue starts.
    """
    generation = live.generation
    found, places = {item.id: item for item in picture.sequences}, dict(picture.places)
    choices = [
        _choice(item, found.get(item.mailbox.id), places.get(item.mailbox.id))
        for item in (generation.choices if generation is not None else ())
    ]
    states: list[State] = [item["state"] for item in choices]
    state: State = min(states, key=ORDER.index, default="preparing")
    first = next((item for item in choices if item["state"] == state), None)
    facts = _facts(live.record, state, same_id)
    if generation is not None:
        facts["generated_tokens"] = sum(item["generated_tokens"] for item in choices)
        facts["cached_tokens"] = generation.usage.cached if any(item.admitted for item in generation.choices) else None
    if first is not None:
        facts |= {"place": first["place"], "reason": first["reason"]}
    start: Estimate | None = None if facts["place"] is None else {"seconds": round(seconds(facts["place"]), 3)}
    return facts | {"choices": choices, "start": start}


def ended_facts(record: RequestRecord) -> RequestFacts:
    return _facts(record, "finished", 0)


def _facts(record: RequestRecord, state: State, same_id: int) -> RequestFacts:
    return {
        "id": record.id,
        "object": "request",
        "path": record.path,
        "state": state,
        "age_seconds": round(time.perf_counter() - record.started, 3),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "generated_tokens": record.generated_tokens or 0,
        "place": None,
        "reason": None,
        "start": None,
        "outcome": record.outcome,
        "choices": [],
        "same_id": same_id,
    }


def _choice(choice: Choice, item: SequenceShape | None, place: int | None) -> ChoiceFacts:
    """A choice that the engine does not have is done, or on its way there."""
    state: State = item.state if item is not None else "finished" if choice.admitted else "waiting"
    return {
        "index": choice.index,
        "state": state,
        "place": place,
        "reason": None if item is None else item.reason,
        "computed_tokens": 0 if item is None else item.computed,
        "generated_tokens": choice.n_generated if item is None else item.generated,
    }
