"""The JSON of an event of the engine."""

import time
from dataclasses import dataclass
from typing import Literal

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.engine.client import EngineState
from service.engine.messages import Stats
from service.engine.picture import Picture, PoolPages, SequenceShape, StepRows

ServiceState = Literal[EngineState, "draining"]


class Prefix(TypedDict):
    """Prompt tokens that were looked up in the prefix cache, and found there."""

    queried: int
    hit: int


class Drafts(TypedDict):
    proposed: int
    accepted: int


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
    pools: tuple[PoolPages, ...]
    steps: tuple[StepRows, ...]
    sequences: tuple[SequenceShape, ...]
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
        "pools": picture.pools,
        "steps": picture.steps,
        "sequences": picture.sequences,
        "left_out": picture.left_out,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
