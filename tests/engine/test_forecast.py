"""Estimates of waiting times against small cases worked out by hand."""

import pytest

from service.engine.budget import LEAST_TOKENS, Cost
from service.engine.forecast import BEST, EXPECTED, WORST, Forecast, Wait, Waits, remaining
from service.engine.picture import Load, Outlook

SECOND = 1.0
"""The cost of a step; rows are free unless a test says otherwise."""


def forecast(outlook: Outlook, ids: set[int]) -> Waits:
    return Forecast(outlook).waits(ids)


def load(number: int, place: int | None, uncomputed: int, generated: int, max_tokens: int, adapter: int = 0) -> Load:
    length, pages = 10 + generated, 3 if place is None else 0
    return Load(number, place, length, uncomputed, generated, max_tokens, (pages,), (100,), adapter)


def outlook(*loads: Load, answers: tuple[int, ...] = (10,) * 20, pages: int = 1000, places: int = 1) -> Outlook:
    return Outlook(Cost(SECOND), 0.0, answers, 4, (pages,), places, 16, loads)


def test_nothing_is_known_before_the_first_step() -> None:
    empty = outlook(load(1, 1, 10, 0, 10))._replace(cost=Cost())
    assert forecast(empty, {1}) == Waits(None, None)


def test_the_next_in_the_queue_waits_for_the_end_of_the_answer_that_runs() -> None:
    """It runs with 4 of 10 tokens, so 6 steps are left; then the prompt takes one. Costs may differ by a quarter."""
    waits = forecast(outlook(load(1, None, 1, 4, 50), load(2, 1, 10, 0, 50)), {2})
    assert waits == Waits(Wait(6.0, 1.5), Wait(7.0, 1.75))


def test_a_long_prompt_takes_chunks_beside_those_that_decode() -> None:
    """Of 16 tokens of a step one belongs to the other sequence: 31 tokens need 3 steps."""
    waits = forecast(outlook(load(1, None, 1, 4, 50), load(2, None, 31, 0, 50), places=2), {2})
    assert waits.start is None
    assert waits.first_token == Wait(3.0, 0.75)


def test_rows_cost_too() -> None:
    heavy = outlook(load(1, None, 15, 0, 50))._replace(cost=Cost(SECOND, 9.0, 0.1))
    assert forecast(heavy, {1}).first_token == Wait(2.5, pytest.approx(0.625))


def test_a_target_makes_chunks_shorter() -> None:
    """Beside one that decodes, 64 tokens need four steps of the least chunk, of 1 + 0.5 + 16 seconds each."""
    case = outlook(load(1, None, 1, 4, 50), load(2, None, 64, 0, 50), places=2)
    case = case._replace(cost=Cost(SECOND, 0.5, 1.0), target=0.1, max_step_tokens=512)
    assert LEAST_TOKENS == 16
    assert forecast(case, {2}).first_token == Wait(4 * 17.5, pytest.approx(0.25 * 70))


def test_the_keys_of_a_long_prompt_cost_too() -> None:
    """64 tokens after 436, in chunks of 15: 5 steps of one second, and a tenth for 64 times 468 pairs in all."""
    item = load(2, None, 64, 0, 50)._replace(length=500)
    case = outlook(load(1, None, 1, 4, 50), item, places=2)._replace(cost=Cost(SECOND, 0.0, 0.0, 0.1 / (64 * 468)))
    assert forecast(case, {2}).first_token == Wait(pytest.approx(5.1, abs=0.01), pytest.approx(5.1 / 4, abs=0.01))


def test_a_sequence_waits_for_pages_although_a_place_is_free() -> None:
    """There are pages for one sequence only: the second starts when the first has ended."""
    waits = forecast(outlook(load(1, None, 1, 4, 50), load(2, 1, 10, 0, 50), pages=2, places=2), {2})
    assert waits.start is not None
    assert waits.start.seconds == 6.0


def test_a_sequence_waits_for_a_place_of_its_adapter() -> None:
    """Adapter 1 has the only place and 6 steps left. 3 has no adapter. 4 comes after 2, which runs for 10 steps."""
    loads = [load(1, None, 1, 4, 50, adapter=1)]
    loads += [load(n, n - 1, 1, 0, 50, adapter) for n, adapter in ((2, 2), (3, 0), (4, 1))]
    case = outlook(*loads, places=4)._replace(max_adapters=1)
    starts = [forecast(case, {n}).start for n in (2, 3, 4)]
    assert [start and start.seconds for start in starts] == [6.0, 0.0, 16.0]
    assert forecast(case._replace(max_adapters=2), {4}).start == Wait(0.0, 0.0)


def test_the_earliest_choice_counts_and_a_request_that_has_a_token_waits_for_nothing() -> None:
    loads = (load(1, None, 1, 4, 50), load(2, 1, 10, 0, 50), load(3, 2, 10, 0, 50))
    assert forecast(outlook(*loads), {2, 3}) == forecast(outlook(*loads), {2})
    assert forecast(outlook(*loads), {1, 3}) == Waits(None, None)


def test_remaining_tokens_are_those_of_the_longer_answers() -> None:
    answers = tuple(range(1, 101))
    assert remaining(answers, load(1, None, 1, 50, 200), 0.5) == 26  # of 51..100 the middle one
    assert remaining(answers, load(1, None, 1, 50, 60), WORST.quantile) == 10  # the limit comes first
    assert remaining((), load(1, None, 1, 50, 200), EXPECTED.quantile) == 75
    assert remaining((), load(1, None, 1, 50, 200), BEST.quantile) == 1
    assert remaining((), load(1, None, 1, 50, 200), WORST.quantile) == 150
