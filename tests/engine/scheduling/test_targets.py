"""Clients under simulated costs, and what the two targets do to them: properties that the defaults promise."""

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.chunks import COSTS, Cost, Request, Times, arriving, percentile, simulate
from model.options import TARGET_FIRST_TOKEN_MS, TARGET_INTER_TOKEN_MS
from service.engine.scheduling.budget import PromptBudget

FIRST, BETWEEN = TARGET_FIRST_TOKEN_MS["cpu"] / 1000, TARGET_INTER_TOKEN_MS["cpu"] / 1000
N = 120
"""Requests."""
COST = Cost(0.003, 0.0004, 0.00025, 1e-7)
"""Seconds of a small model on two cores, of which a server takes its part."""
Seconds = Callable[[float, int, int, float], float]


def of(cost: Cost) -> Seconds:
    return lambda now, *counts: cost.seconds(*counts)


@cache
def served(name: str, first: float, between: float, load: float) -> Times:
    """What requests meet at this share of the capacity; all at once if it is 0."""
    cost = COSTS[name]
    rate = load * N / served(name, 0.0, 0.0, 0.0).end if load else 0.0
    return simulate(arriving(N, rate, 7), of(cost), PromptBudget(first, between))


@pytest.mark.parametrize("name", ["int8", "bf16", "fast-int8", "fast-bf16", "7b"])
def test_the_defaults_cost_no_capacity(name: str) -> None:
    assert served(name, FIRST, BETWEEN, 0.0).end < 1.03 * served(name, 0.0, 0.0, 0.0).end


@pytest.mark.each
@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
@pytest.mark.parametrize(
    ("name", "later"), [("int8", 1.4), ("bf16", 1.4), ("fast-int8", 1.2), ("fast-bf16", 1.2), ("7b", 1.2)]
)
def test_the_defaults_make_no_request_slower(name: str, later: float, load: float) -> None:
    free, found = served(name, 0.0, 0.0, load), served(name, FIRST, BETWEEN, load)
    assert sum(found.requests) < 1.03 * sum(free.requests)
    for share in (0.5, 0.99):
        assert percentile(found.firsts, share) < later * percentile(free.firsts, share)


@pytest.mark.parametrize("name", ["int8", "fast-int8", "fast-bf16"])
def test_below_capacity_running_answers_stay_within_their_target(name: str) -> None:
    between = served(name, FIRST, BETWEEN, 0.3).between
    assert percentile(between, 0.99) < 1.2 * BETWEEN


@pytest.mark.each
@pytest.mark.parametrize("load", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["", "fast-"])
def test_fewer_bits_have_no_later_first_tokens(kind: str, load: float) -> None:
    """At the same rate of requests, that of the load for 16 bits."""
    slower = served(f"{kind}bf16", FIRST, BETWEEN, load)
    rate = load * N / served(f"{kind}bf16", 0.0, 0.0, 0.0).end
    faster = simulate(arriving(N, rate, 7), of(COSTS[f"{kind}int8"]), PromptBudget(FIRST, BETWEEN))
    for share in (0.5, 0.99):
        assert percentile(faster.firsts, share) <= percentile(slower.firsts, share)


def test_a_prompt_makes_its_target_while_that_is_possible() -> None:
    """It comes every second, takes 75 ms, and has 200 ms. Streams decode all the time, and cannot have 1 ms."""
    streams = [Request(0.0, 32, 1500) for _ in range(8)]
    prompts = [Request(1.0 + number, 300, 2) for number in range(5)]
    found = simulate(streams + prompts, of(COST), PromptBudget(0.2, 0.001))
    assert max(found.firsts[8:]) < 1.05 * 0.2
    assert min(found.firsts[8:]) > 0.1  # it leaves the streams what it does not need
    assert percentile(found.between, 0.99) < 0.02  # all at once would be 81 ms


def test_streams_keep_their_target_while_prompts_have_time() -> None:
    """Their prompts come at once, and are late. Those that come later have 2 s."""
    requests = [Request(0.0, 32, 1000) for _ in range(8)] + [Request(2.0 + 0.5 * n, 300, 2) for n in range(8)]
    found = simulate(requests, of(COST), PromptBudget(2.0, 0.03))
    assert percentile(found.between, 0.99) < 1.15 * 0.03
    assert max(found.firsts[8:]) < 2.0


def test_streams_do_not_wait_for_prompts_that_wait_for_streams() -> None:
    """In a closed loop few sequences that decode could leave prompts little time, and stay few."""
    requests = [Request(0.0, 128, 64) for _ in range(256)]
    free, found = (simulate(requests, of(COST), PromptBudget(*pair), streams=32) for pair in ((0, 0), (FIRST, BETWEEN)))
    assert found.end < 1.03 * free.end
    assert percentile(found.firsts, 0.5) < 3 * percentile(free.firsts, 0.5)


def test_costs_follow_a_machine_that_becomes_slower() -> None:
    """After 3 s it is three times as slow. Some prompts later, steps meet the target again."""
    requests = [Request(0.0, 32, 900) for _ in range(4)] + [Request(1.0 + 0.5 * n, 300, 2) for n in range(20)]

    def seconds(now: float, rows: int, tokens: int, pairs: float) -> float:
        took = COST.seconds(rows, tokens, pairs) * (1 if now < 3 else 3)
        if now > 5:
            later.append(took)
        return took

    later = list[float]()
    simulate(requests, seconds, PromptBudget(5.0, 0.04))
    assert 0.03 < max(later) < 1.2 * 0.04


def test_prompts_that_cost_more_beside_streams_do_not_mislead() -> None:
    """Prompt tokens cost half as much while nothing decodes, as they do where a server works beside."""

    def seconds(now: float, rows: int, tokens: int, pairs: float) -> float:
        return COST.seconds(rows, tokens if rows else tokens // 2, pairs)

    requests = [Request(0.0, 32, 600) for _ in range(4)] + [Request(1.0 + 0.4 * n, 300, 2) for n in range(8)]
    found = simulate(requests, seconds, PromptBudget(5.0, 0.04))
    assert percentile([took for rows, took in found.steps if rows], 0.99) < 1.2 * 0.04


def test_a_deep_prompt_holds_streams_up_no_longer_than_its_beginning() -> None:
    """The last token of a prompt costs 2.2 times as much as the first."""
    requests = [Request(0.0, 32, 900) for _ in range(4)] + [Request(1.0, 3000, 2)]
    found = simulate(requests, of(COST), PromptBudget(60.0, 0.02))
    steps = sorted(took for rows, took in found.steps if rows)
    assert steps[int(0.99 * len(steps))] < 1.25 * 0.02
