"""The JSON of an event of the engine."""

import time
from dataclasses import dataclass
from typing import Literal

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.engine.client import EngineState
from service.engine.messages import Stats
from service.engine.picture import Picture, Reason, SequencePicture, SequenceState, TablePicture

ServiceState = Literal[EngineState, "draining"]


class Prefix(TypedDict):
    """Prompt tokens that were looked up in the prefix cache, and found there."""

    queried: int
    hit: int


class Drafts(TypedDict):
    proposed: int
    accepted: int


class PoolPages(TypedDict):
    """The pages of the layers with this window (null: full attention). `held` includes `shared`."""

    window: int | None
    page_size: int
    pages: int
    held: int
    shared: int
    cached: int
    free: int


class StepRows(TypedDict):
    """One step: its number, its rows by kind, its sequences and its seconds."""

    n: int
    decode: int
    prompt: int
    draft: int
    sequences: int
    seconds: float


class SequencePages(TypedDict):
    """The `held` pages of a sequence in one pool, from block `first` on.

    `ids` are the newest 64 of them, in block order. `shared` are indexes into `ids`.
    """

    first: int
    held: int
    ids: list[int]
    shared: list[int]


class SequenceShape(TypedDict):
    """One sequence: its state, its numbers of tokens, why it waits, and its pages in each pool."""

    id: int
    state: SequenceState
    prompt: int
    computed: int
    generated: int
    cached: int
    reason: Reason | None
    pages: list[SequencePages]


class EngineEvent(TypedDict):
    """The data of an event `engine`. Totals begin with the engine. Rates are of the last second."""

    time: float
    state: ServiceState
    running: int
    waiting: int
    tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_seconds: float | None
    queue_seconds: float | None
    preemptions: int
    prefix: Prefix
    drafts: Drafts
    pools: list[PoolPages]
    steps: list[StepRows]
    sequences: list[SequenceShape]
    left_out: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens in a second, and the latest waits of a request in seconds."""

    generated: float = 0.0
    prompt: float = 0.0
    first_token: float | None = None
    queue: float | None = None


def event(status: ServiceState, stats: Stats, picture: Picture, pace: Pace) -> EngineEvent:
    return {
        "time": round(time.time(), 3),
        "state": status,
        "running": stats.running,
        "waiting": stats.waiting,
        "tokens_per_second": round(pace.generated, 2),
        "prompt_tokens_per_second": round(pace.prompt, 2),
        "ttft_seconds": _rounded(pace.first_token),
        "queue_seconds": _rounded(pace.queue),
        "preemptions": stats.preemptions,
        "prefix": {"queried": stats.queried_tokens, "hit": stats.hit_tokens},
        "drafts": {"proposed": stats.draft_tokens, "accepted": stats.accepted_draft_tokens},
        "pools": [pool._asdict() for pool in picture.pools],  # type: ignore[misc]
        "steps": [step._asdict() for step in picture.steps],  # type: ignore[misc]
        "sequences": [_sequence(item) for item in picture.sequences],
        "left_out": picture.left_out,
    }


def _sequence(item: SequencePicture) -> SequenceShape:
    shape = {**item._asdict(), "pages": [_pages(table) for table in item.pages]}
    del shape["place"]  # the queue's order shows it
    return shape  # type: ignore[return-value]


def _pages(table: TablePicture) -> SequencePages:
    return table._asdict()  # type: ignore[return-value]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
