"""The tokens and times of a request by a clock of the test, and what it leaves waiting."""

from typing import Any

import pytest

from model.sampling_params import SamplingParams
from service.access.record import Policy, RequestRecord
from service.engine.messages import Admitted, DraftCount, Submit
from service.generation import usage as module
from service.generation.usage import Backlog, Meter


class Clock:
    """The clock, which stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 10.0

    def perf_counter(self) -> float:
        return self.now


class Metrics:
    """The calls of `Observed`, by the last word of their names."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.seen.setdefault(name.removeprefix("observe_"), []).append(values)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def submit(n_prompt: int, n: int = 1, inputs: bytes = b"") -> Submit:
    return Submit(0, [1] * n_prompt, SamplingParams(), n=n, inputs=inputs)


def record() -> RequestRecord:
    """It came 1 s before the request is submitted, and waited half of it for its model."""
    return RequestRecord("r", "POST", "/v1/completions", None, Policy(), started=9.0, load_seconds=0.5)


def test_times_of_a_request_add_up(clock: Clock) -> None:
    """Queue 2 s, prompt 3 s, three tokens in 4 s: the first of them ends the prompt's time."""
    metrics, about = Metrics(), record()
    meter = Meter((submit(12),), metrics, about, Backlog())
    clock.now = 12.5
    meter.admit(Admitted(cached=6, queued=2.0, from_disk=4), submit(12), 0)
    clock.now = 15.0
    latest = meter.generate(1, 1, None)
    clock.now = 19.0
    for draft in (DraftCount("self", 4, 3), DraftCount("answers", 2, 1), DraftCount("self", 3, 0)):
        meter.verify(draft)
    assert meter.generate(2, 0, latest) == 19.0
    assert meter.timings() == {
        "load_ms": 500.0,
        "queue_ms": 2000.0,
        "prompt_ms": 3000.0,
        "predicted_ms": 4000.0,
        "cache_n": 6,
        "cache_disk_n": 4,
        "cache_miss": None,
        "prompt_n": 6,
        "predicted_n": 3,
        "prompt_per_second": 2.0,
        "predicted_per_second": 0.75,
        "draft_n": 9,
        "draft_n_accepted": 4,
        "drafters": ["answers", "self"],
    }
    assert metrics.seen == {
        "queue": [(2.0,)],
        "first_token": [(15.0 - 9.0 - 0.5,)],
        "tokens": [(1, None), (2, 4.0)],
        "thought": [(1,)],
    }
    meter.close(["stop"])
    facts = about.generation
    assert (facts.queue_seconds, facts.first_token_seconds, facts.last_token) == (2.0, 5.5, 19.0)
    assert (facts.cached_tokens, facts.generated_tokens, facts.reasoning_tokens) == (6, 3, 1)
    assert facts.finishes == ("stop",)


def waiting(backlog: Backlog) -> tuple[int, int, int]:
    return backlog.tokens.total, backlog.choices.total, backlog.media.total


def test_a_prompt_waits_until_its_first_choice_begins_and_media_until_the_first_token(clock: Clock) -> None:
    """Two prompts of 5 and 7 tokens with two choices each, and 9 bytes of an image."""
    first, second, backlog = submit(5, 2, b"i" * 9), submit(7, 2), Backlog()
    meter = Meter((first, second), Metrics(), record(), backlog)
    seen = [waiting(backlog)]
    for index, of in enumerate((first, first, second, second)):
        meter.admit(Admitted(), of, index)
        seen.append(waiting(backlog))
    assert seen == [(12, 4, 9), (7, 3, 9), (7, 2, 9), (0, 1, 9), (0, 0, 9)]
    meter.generate(1, 0, None)
    assert waiting(backlog) == (0, 0, 0)
    meter.close(["stop"] * 4)
    assert waiting(backlog) == (0, 0, 0)


def test_nothing_waits_of_a_request_that_ends_in_the_queue(clock: Clock) -> None:
    backlog = Backlog()
    meter = Meter((submit(5, 2, b"i" * 9), submit(7, 2)), Metrics(), record(), backlog)
    meter.admit(Admitted(), submit(5, 2), 1)
    meter.close(["abort"] * 4)
    assert waiting(backlog) == (0, 0, 0)
