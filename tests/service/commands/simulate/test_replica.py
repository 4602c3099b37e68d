"""Replicas with constant costs: every time is arithmetic on paper."""

from collections.abc import Iterable

import pytest

from model.batch import SliceOutput, StepOutput
from model.sampling_params import SamplingParams
from service.commands.lengths import lengths
from service.commands.simulate.costs import Costs, Line
from service.commands.simulate.fleet import BALANCERS, Fleet
from service.commands.simulate.replica import GAP_CLASS, gap_seconds
from service.commands.simulate.requests import Request, at_random
from service.commands.simulate.summary import Targets, summarize
from service.engine.budget import PromptBudget
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.service.commands.simulate.costs import costs, served


def times(fleet: Fleet) -> list[tuple[float, float]]:
    return [(item.first, item.end) for item in fleet.served]


def test_a_prompt_takes_its_chunks_and_each_token_a_step() -> None:
    """20 tokens at 8 a step are three steps; the third gives the first token, two more the others."""
    fleet = served(costs(request=0.5), Request(10.0, 20, 3))
    assert times(fleet) == [(13.5, 15.5)]
    assert fleet.served[0].first_token == 3.5
    assert fleet.served[0].inter_token == 1.0
    assert fleet.replicas[0].busy == fleet.replicas[0].steps == 5


def test_the_cost_counts_tokens_sequences_keys_and_pairs() -> None:
    """A prompt of 3, then a token beside a prompt of 2, by the five numbers of a line."""
    line = Line(step=1, token=10, sequence=100, key=1_000, pair=100_000)
    fleet = served(costs(line), Request(0.0, 3, 2), Request(0.5, 2, 1))
    first = 1 + 10 * 3 + 100 + 1_000 * 3 + 100_000 * (1 + 2 + 3)
    second = 1 + 10 * 3 + 100 * 2 + 1_000 * (4 + 2) + 100_000 * (4 + 1 + 2)
    assert times(fleet) == [(first, first + second), (first + second, first + second)]


def test_the_greater_line_counts() -> None:
    lines = (Line(step=1.0), Line(step=0.5, token=0.25))
    two = Costs({}, lines, 0.0, costs().engine)
    assert times(served(two, Request(0.0, 8, 2))) == [(2.5, 3.5)]


def test_a_request_waits_for_the_step_in_flight_and_for_a_place() -> None:
    """The second comes in the middle of a step; the third waits until the first has ended."""
    fleet = served(costs(max_sequences=2), Request(0.0, 4, 3), Request(0.5, 4, 4), Request(0.6, 4, 1))
    assert times(fleet) == [(1.0, 3.0), (2.0, 5.0), (4.0, 4.0)]
    assert [item.queued for item in fleet.served] == [0.0, 0.5, pytest.approx(2.4)]
    assert fleet.replicas[0].most_waiting == 2
    report = summarize(fleet, costs(), Targets(9.0, 9.0))
    assert report["engine"]["mean_waiting"] == pytest.approx((0.5 + 2.4) / 5)


def test_a_full_queue_and_a_long_prompt_are_refused() -> None:
    """One runs and one waits; the third is one too many. The fourth could never run."""
    fleet = served(
        costs(max_sequences=1),
        *(Request(0.0, 4, 1), Request(0.1, 4, 1), Request(0.2, 4, 1), Request(9.0, 120, 9)),
        max_queue=1,
    )
    assert [item.refused for item in fleet.served] == ["", "", "queue", "length"]
    report = summarize(fleet, costs(), Targets(9.0, 9.0))
    assert report["requests"] == {"total": 4, "answered": 2, "refused": {"queue": 1, "length": 1}}
    assert report["goodput"]["share"] == 0.5


def test_a_preempted_request_is_computed_again_and_its_gap_counted() -> None:
    """Two sequences need 10 pages of 4 and there are 6: the younger one gives way and comes back."""
    fleet = served(costs(pages=6, max_model_len=24), Request(0.0, 4, 16), Request(0.0, 4, 16))
    report = summarize(fleet, costs(), Targets(2.0, 1.5))
    assert report["engine"]["preemptions"] == 1
    older, younger = fleet.served
    assert (older.first, older.end) == (1.0, 16.0)
    assert younger.end > 20
    assert sum(fleet.replicas[0].gaps.values()) == 2 * 15
    gaps = {round(gap_seconds(number), 2) for number in fleet.replicas[0].gaps}
    assert min(gaps) == 1.0
    assert max(gaps) > 2
    assert report["goodput"]["share"] == 0.5


def step_by_step(found: Costs, requests: Iterable[Request]) -> list[tuple[float, float]]:
    """First and last token of each request, by the scheduler alone: one Python step for each step."""
    info, now = found.engine, 0.0
    limits = {"max_sequences": info.max_sequences, "max_step_tokens": info.max_step_tokens}
    scheduler = Scheduler(info, **limits, prompts=(prompts := PromptBudget(info.target_inter_token)))
    arrivals = list(enumerate(requests))[::-1]
    first: dict[int, float] = {}
    end: dict[int, float] = {}
    while arrivals or scheduler.has_work:
        now = now if scheduler.has_work else max(now, arrivals[-1][1].at)
        while arrivals and arrivals[-1][1].at <= now:
            number, item = arrivals.pop()
            params = SamplingParams(temperature=0.0, max_tokens=item.n_output)
            scheduler.submit(Submit(number, item.prompt(number), params))
        batch = scheduler.plan()
        counts = [
            (item.stop - item.start, item.stop, sum(range(item.start + 1, item.stop + 1))) for item in batch.slices
        ]
        seconds = found.seconds(
            sum(c[0] for c in counts), len(counts), sum(c[1] for c in counts), sum(c[2] for c in counts)
        )
        now += seconds
        chunks = [range(item.start, item.stop) for item in batch.slices if item.stop - item.start > 1]
        pairs = sum(position + 0.5 for chunk in chunks for position in chunk)  # a token sees half of its own key
        prompts.note(batch.n_tokens - batch.n_prompt, batch.n_prompt, pairs, seconds)
        sampled = ((2 * item.sequence_id + 1,) if item.samples else () for item in batch.slices)
        for update in scheduler.commit(StepOutput(tuple(map(SliceOutput, sampled)))):
            first.setdefault(update.id, now)
            if update.finish:
                end[update.id] = now
    return [(first[number], end[number]) for number in sorted(first)]


@pytest.mark.parametrize(("pages", "target"), [(40, 0.0), (400, 0.0), (400, 0.02)])
def test_a_load_is_served_as_step_by_step(pages: int, target: float) -> None:
    """Few pages preempt. A target cuts chunks. The times are equal to the last bit but for the order of additions."""
    line = Line(step=2**-7, token=2**-12, sequence=2**-11, key=2**-16, pair=2**-18)
    limits = {"max_sequences": 16, "max_step_tokens": 64, "target_inter_token": target}
    found = costs(line, pages=pages, **limits)
    draws = lengths("uniform:1-60", "--input").draw, lengths("lognormal:20,0.5", "--output").draw
    requests = list(at_random(12.0, 150, *draws, shared=9, seed=3))
    fleet = served(found, *requests)
    assert bool(fleet.replicas[0].scheduler.stats().preemptions) == (pages == 40)
    assert fleet.replicas[0].scheduler.stats().hit_tokens
    assert times(fleet) == [pytest.approx(item, rel=1e-9) for item in step_by_step(found, requests)]


def test_round_robin_takes_turns_and_least_requests_looks() -> None:
    """A long request and a short one; the third comes when only the short one is over."""
    requests = (Request(0.0, 4, 9), Request(0.0, 4, 1), Request(5.0, 4, 1))
    ends = {
        name: served(costs(max_sequences=1), *requests, replicas=2, balancer=BALANCERS[name]).served[2].end
        for name in ("round-robin", "least-requests")
    }
    assert ends == {"round-robin": 10.0, "least-requests": 6.0}


def test_hashing_keeps_a_conversation_on_its_replica() -> None:
    """The second question of a conversation finds the pages of the first one there: 2 pages of 4."""
    turns = [Request(float(10 * n), 9, 1, prefix=(7,), block=8, conversation="a") for n in range(2)]
    other = Request(5.0, 9, 1)
    for name, cached in (("hash", 8), ("round-robin", 8)):
        fleet = served(costs(), *turns, replicas=3, balancer=BALANCERS[name])
        assert fleet.served[1].cached == (cached if name == "hash" else 0)
    fleet = served(costs(), turns[0], other, turns[1], replicas=1)
    assert [item.cached for item in fleet.served] == [0, 0, 8]


def test_a_class_of_gaps_is_one_percent_wide() -> None:
    assert GAP_CLASS == 1.01
    fleet = served(costs(Line(step=0.0371)), Request(0.0, 4, 50))
    [(number, count)] = fleet.replicas[0].gaps.items()
    assert count == 49
    assert gap_seconds(number) == pytest.approx(0.0371, rel=0.01)
