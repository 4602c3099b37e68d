"""What crosses the pipe between service and engine: plain data as JSON, never pickles.

To the engine:    Load, Submit, Abort, Stop
From the engine:  Loading (stage, progress), Ready (RunnerInfo), Failed (start-up error), Report (one a step), Beat
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from model.batch import PoolSpec, RunnerInfo, TokenLogprob
from model.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model: `options` are the keyword arguments of the runner's callable."""

    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Submit:
    """One sequence to complete; `id` is unique in the engine's life.

    Of those that wait the lowest `priority` comes first. Pages are shared among sequences of one `cache_salt` only.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    choice: int = 0
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget a sequence; unknown ids are fine (it may have finished meanwhile)."""

    id: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine process."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Start-up progress: a stage's name and a fraction 0..1."""

    stage: str
    progress: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and answers."""

    info: RunnerInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be loaded; `message` is one line for a person."""

    message: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The engine process is alive (sent while idle and inside long steps)."""


class Update(NamedTuple):
    """What a step gave one sequence.

    `finish` is None while it goes on, then "stop" (a stop token, which is `tokens[-1]`), "length" or "error"; "timeout"
    comes from `Mailbox.expire`.
    `cached` counts prompt tokens taken from the cache, `queued` the seconds waited; both come with the first update.
    `failure` says what is to be said of an "error" that is the request's own.
    `processed` is how many prompt tokens are computed, if that is wanted; `embedding` [dim] comes with the last.
    """

    id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    cached: int | None = None
    queued: float | None = None
    failure: str | None = None
    processed: int | None = None
    embedding: tuple[float, ...] = ()


class PoolStats(NamedTuple):
    """Pages of one pool by state."""

    window: int | None
    held: int
    cached: int
    free: int


class Stats(NamedTuple):
    """The engine after a step. Counters are totals since the engine started."""

    running: int = 0
    waiting: int = 0
    step_tokens: int = 0
    step_seconds: float = 0.0
    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    pools: tuple[PoolStats, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """One a step: all updates, and the engine's state."""

    updates: tuple[Update, ...]
    stats: Stats = field(default_factory=Stats)


ToEngine = Load | Submit | Abort | Stop
FromEngine = Loading | Ready | Failed | Beat | Report


def encode(message: ToEngine | FromEngine) -> bytes:
    """One message as JSON bytes."""
    fields = {"kind": type(message).__name__, **_ENCODERS.get(type(message), asdict)(message)}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes) -> ToEngine | FromEngine:
    """Inverse of `encode`. Raises KeyError, TypeError or ValueError for anything else."""
    fields = json.loads(data.decode())
    kind = fields.pop("kind")
    return _DECODERS[kind](fields) if kind in _DECODERS else _KINDS[kind](**fields)


def _encode_submit(message: Submit) -> dict[str, Any]:
    return {
        "id": message.id,
        "prompt": message.prompt,
        "params": message.params.to_json(),
        "choice": message.choice,
        "priority": message.priority,
        "cache_salt": message.cache_salt,
    }


def _decode_submit(fields: dict[str, Any]) -> Submit:
    return Submit(**fields | {"params": SamplingParams.from_json(fields["params"])})


def _encode_update(update: Update) -> list[Any]:
    """As a row of id and tokens, and of the rest where there is any: a plain token should cost little."""
    number, tokens, logprobs, prompt_logprobs, *rest = update
    if update[2:] == Update(0)[2:]:
        return [number, tokens]
    return [number, tokens, _encode_logprobs(logprobs), _encode_logprobs(prompt_logprobs), *rest]


def _decode_update(row: list[Any]) -> Update:
    number, tokens, *rest = row
    if rest:
        rest[:2] = map(_decode_logprobs, rest[:2])
        rest[-1] = tuple(rest[-1])
    return Update(number, tuple(tokens), *rest)


def _encode_logprobs(items: tuple[TokenLogprob, ...]) -> list[Any]:
    return [(item.token, item.logprob, item.top, item.rank) for item in items]


def _decode_logprobs(items: list[Any]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, logprob, tuple(map(tuple, top)), rank) for token, logprob, top, rank in items)


def _encode_report(report: Report) -> dict[str, Any]:
    return {"updates": [_encode_update(update) for update in report.updates], "stats": report.stats._asdict()}


def _decode_report(fields: dict[str, Any]) -> Report:
    stats = fields["stats"]
    stats["pools"] = tuple(PoolStats(*pool) for pool in stats["pools"])
    return Report(tuple(map(_decode_update, fields["updates"])), Stats(**stats))


def _decode_ready(fields: dict[str, Any]) -> Ready:
    info = fields["info"]
    info["pools"] = tuple(PoolSpec(**pool) for pool in info["pools"])
    return Ready(RunnerInfo(**info))


_KINDS = {kind.__name__: kind for kind in (Load, Abort, Stop, Loading, Failed, Beat)}
_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {Submit: _encode_submit, Report: _encode_report}
_DECODERS: dict[str, Callable[[dict[str, Any]], Submit | Ready | Report]] = {
    "Submit": _decode_submit,
    "Ready": _decode_ready,
    "Report": _decode_report,
}
