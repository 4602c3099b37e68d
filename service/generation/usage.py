"""The tokens and the time of a request, counted while it is generated."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, cast

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from model.media import KINDS
from service.access.keys import Share
from service.access.record import GenerationFacts, RequestRecord
from service.engine.messages import Admitted, DraftCount, Submit

log = logging.getLogger("noria.request")


@dataclass(slots=True)
class Usage:
    """The tokens of a request so far. A prompt counts once, whatever its number of choices.

    `drafted` are draft tokens that steps verified, `accepted` those of them in the answer, by who drafted them.
    `reasoning` is the part of `completion` that is thought, `images` and `audio` are the parts of `prompt` that stand
    for them, and `from_disk` is the part of `cached` that was read from the prefix store.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    images: int = 0
    audio: int = 0
    from_disk: int = 0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, submits: Sequence[Submit]) -> Self:
        """Return the usage before the first token of the answer."""
        spans = [span for submit in submits for span in submit.media]
        images, audio = (sum(span.stop - span.start for span in spans if span.kind == kind) for kind in KINDS)
        return cls(prompt=sum(len(submit.prompt) for submit in submits), images=images, audio=audio)


class CacheMiss(TypedDict):
    """The place where the prompt left the cached prefix: the first prompt token that did not come from it, and why."""

    at: int
    reason: Literal["new", "diverged", "evicted", "window", "salt", "bypassed"]


class Timings(TypedDict):
    """Tokens and milliseconds of a request, by llama.cpp's names: `prompt` until the first token, `predicted` after.

    `load` is the wait until the model was loaded, before all others.

    Of the `cache_n` tokens from the cache `cache_disk_n` were read from the disk. `cache_miss` is null if all full
    pages of the first prompt came from the cache. `draft_n` draft tokens of these `drafters` were verified.
    """

    load_ms: float
    queue_ms: float
    cache_n: int
    cache_disk_n: int
    cache_miss: CacheMiss | None
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    drafters: list[str]


class Observed(Protocol):
    """What counts tokens and times: the metrics of the server."""

    def observe_prompt(self, n_tokens: int) -> None: ...
    def observe_queue(self, seconds: float) -> None: ...
    def observe_first_token(self, seconds: float) -> None: ...
    def observe_tokens(self, n_tokens: int, seconds: float | None) -> None: ...
    def observe_thought(self, n_tokens: int) -> None: ...


class Backlog:
    """What waits for the engine: choices without a first step, and the tokens of prompts without one.

    `media` are bytes of decoded images and audio, of requests without a first token.
    """

    def __init__(self) -> None:
        self.tokens = Share()
        self.choices = Share()
        self.media = Share()

    def add(self, tenant: str, tokens: int, choices: int, media: int) -> None:
        """Count more; negative numbers count what waits no longer."""
        self.tokens.add(tenant, tokens)
        self.choices.add(tenant, choices)
        self.media.add(tenant, media)


class Meter:
    """Counts what one request takes, from its submission on: in `usage`, for the metrics, and in the facts of `record`.

    `backlog` counts what waits, of all requests. `close` must be called at the end.
    """

    def __init__(self, submits: Sequence[Submit], metrics: Observed, record: RequestRecord, backlog: Backlog) -> None:
        self.usage = Usage.of(submits)
        self.submitted = time.perf_counter()
        self._metrics = metrics
        self._record = record
        self._facts = record.generation = GenerationFacts()
        self._backlog = backlog
        self._first: float | None = None
        self._miss: CacheMiss | None = None
        self._waiting = (0, 0, 0)  # this request's part of the backlog: tokens, choices, bytes of decoded media
        n_choices = sum(submit.n for submit in submits)
        self._wait(self.usage.prompt, n_choices, sum(len(submit.inputs) for submit in submits))

    def _wait(self, tokens: int, choices: int, media: int = 0) -> None:
        self._waiting = (self._waiting[0] + tokens, self._waiting[1] + choices, self._waiting[2] + media)
        self._backlog.add(self._record.tenant, tokens, choices, media)

    def admit(self, admitted: Admitted, submit: Submit, index: int) -> None:
        """Count that the engine has begun with the choice `index`. The first choice of a prompt counts the prompt."""
        of_prompt = index % submit.n == 0
        self._wait(-len(submit.prompt) if of_prompt else 0, -1)
        self._metrics.observe_queue(admitted.queued)
        if self._facts.queue_seconds is None:  # of several choices the first that is admitted counts
            self._facts.queue_seconds = admitted.queued
        if of_prompt:
            self.usage.cached += admitted.cached
            self.usage.from_disk += admitted.from_disk
        if admitted.miss is not None and not index:
            self._miss = cast(CacheMiss, admitted.miss._asdict())

    def generate(self, n_tokens: int, n_thought: int, latest: float | None) -> float:
        """Count new tokens of a choice, `n_thought` of them thought. `latest` is the time of its tokens before them.

        Returns the time of these tokens, by perf_counter.
        """
        now, facts = time.perf_counter(), self._facts
        if latest is None:
            self._first = self._first or now
            self._wait(0, 0, -self._waiting[2])
            seconds = now - self._record.started - self._record.load_seconds
            self._metrics.observe_first_token(seconds)
            if facts.first_token_seconds is None:
                facts.first_token_seconds = seconds
                log.debug("first token", extra={"fields": {"id": self._record.id}})
        self._metrics.observe_tokens(n_tokens, None if latest is None else now - latest)
        self.usage.completion += n_tokens
        if n_thought:
            self.usage.reasoning += n_thought
            self._metrics.observe_thought(n_thought)
        facts.last_token = now
        return now

    def verify(self, draft: DraftCount) -> None:
        """Count the draft tokens that a step verified in a choice."""
        self.usage.drafted[draft.drafter] += draft.drafted
        self.usage.accepted[draft.drafter] += draft.accepted

    def know(self, n_thought: int) -> None:
        """Count a token that the client has, `n_thought` of it thought: nobody computes it here."""
        self.usage.completion += 1
        self.usage.reasoning += n_thought

    def close(self, finishes: Sequence[str]) -> None:
        """Let nothing of it wait, and complete the facts with the finish reasons of its choices."""
        self._wait(*(-part for part in self._waiting))
        facts, usage = self._facts, self.usage
        facts.cached_tokens, facts.generated_tokens = usage.cached, usage.completion
        facts.reasoning_tokens = usage.reasoning
        facts.finishes = (*finishes,)

    def timings(self) -> Timings:
        """Return the times of all choices: the first token of all ends the prompt's time, the last one the answer's."""
        first = self._first or time.perf_counter()
        queue = self._facts.queue_seconds or 0.0
        prompt = max(0.0, first - self.submitted - queue)
        answer = (self._facts.last_token or first) - first
        return timings(self.usage, self._miss, queue, prompt, answer, self._record.load_seconds)


def timings(
    usage: Usage, miss: CacheMiss | None, queue: float, prompt: float, predicted: float, load: float = 0.0
) -> Timings:
    """Return the timings of a request that waited `load` and `queue`, then took `prompt` and `predicted` seconds."""
    n_prompt = usage.prompt - usage.cached
    return {
        "load_ms": _ms(load),
        "queue_ms": _ms(queue),
        "cache_n": usage.cached,
        "cache_disk_n": usage.from_disk,
        "cache_miss": miss,
        "prompt_n": n_prompt,
        "prompt_ms": _ms(prompt),
        "prompt_per_second": round(n_prompt / prompt, 2) if prompt else 0.0,
        "predicted_n": usage.completion,
        "predicted_ms": _ms(predicted),
        "predicted_per_second": round(usage.completion / predicted, 2) if predicted else 0.0,
        "draft_n": usage.drafted.total(),
        "draft_n_accepted": usage.accepted.total(),
        "drafters": sorted(usage.drafted),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
