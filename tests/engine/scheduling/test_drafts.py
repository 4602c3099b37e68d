"""Drafts of the runner and from earlier answers: which pay, against a search over all, and what is learned."""

import random
from collections.abc import Sequence
from itertools import product

import pytest

from model.batch import UNKNOWN
from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from service.engine.scheduling.answers import MAX_TENANTS, MAX_TOKENS, Answers, Library
from service.engine.scheduling.budget import StepCost
from service.engine.scheduling.drafts import PASS_GAIN, DraftBudget, Drafters, OwnDrafts, Shared


def rate(lengths: Sequence[int], chances: Sequence[float], fixed: float, each: float) -> float:
    """The tokens for the cost of a step in which sequences have drafts of these lengths."""
    expected = sum(sum(chance**n for n in range(length + 1)) for chance, length in zip(chances, lengths, strict=True))
    return expected / (fixed + len(lengths) + sum(lengths) + each * max(lengths))


@pytest.mark.parametrize("seed", range(12))
def test_passes_come_near_the_best_lengths(seed: int) -> None:
    """The budget asks a little more of a pass than that it pays, so it may stop a token early."""
    rng = random.Random(seed)
    chances = [rng.choice((0.3, 0.6, 0.8, 0.95)) for _ in range(rng.randrange(1, 4))]
    fixed, each = rng.uniform(2, 40), rng.uniform(0, 15)
    budget = DraftBudget(len(chances), fixed, each)
    lengths = budget.add_passes([[chance] * 6 for chance in chances])
    best = max(rate(some, chances, fixed, each) for some in product(range(7), repeat=len(chances)))
    found = rate(lengths, chances, fixed, each)
    assert best / PASS_GAIN**2 <= found <= best
    assert found >= rate([0] * len(chances), chances, fixed, each)


def test_where_no_pass_pays_there_is_none() -> None:
    assert DraftBudget(32, 20, 10).add_passes([[0.7] * 8] * 32) == [0] * 32
    assert DraftBudget(1, 20, 10).add_passes([[0.3] * 8]) == [0]
    assert DraftBudget(1, 20, 10).add_passes([]) == []


def test_the_runner_drafts_for_a_text_that_it_guesses_right() -> None:
    shared = Shared()
    own = OwnDrafts(shared)
    assert own.draft([1, 2], 3) == [UNKNOWN] * 3
    own.observe([5, 6, 7, 8], 3)  # all right, and one token more
    assert own.draft([1, 2], 1)
    assert own.chances[0] == pytest.approx(1 - 0.2 * (15 / 16) ** 3)
    for _ in range(40):
        own.observe([5], 2)
    own.draft([1, 2], 1)
    assert own.chances[0] < 0.1
    before = own.chances
    own.observe([5, 6], 0)  # another drafted
    own.draft([1, 2], 1)
    assert own.chances == before
    new = OwnDrafts(shared)
    new.draft([1, 2], 1)
    assert own.chances[0] < new.chances[0] < 0.8, "a new sequence begins with what was learned of all"


def test_the_cost_of_a_pass_is_learned_and_one_hiccup_does_not_count_for_much() -> None:
    cost = StepCost()
    for rows in (1, 9) * 20:
        cost.note(rows, 0, 0.0, 0.01 + 0.001 * rows)
    assert cost.pass_rows == pytest.approx(5, rel=0.1), "half of a step, before the first"
    for _ in range(20):
        cost.note_passes(4, 0.012)
    assert cost.pass_rows == pytest.approx(3, rel=0.1)
    cost.note_passes(1, 10.0)
    assert cost.pass_rows < 4


def test_a_pass_beside_a_prompt_may_be_measured_before_a_row_is() -> None:
    cost = StepCost()
    cost.note(2, 100, 0.0, 0.5)
    cost.note_passes(2, 0.01)
    assert cost.pass_rows > 0


def test_the_longest_match_of_the_latest_answer_is_followed_to_its_end() -> None:
    answers = Answers()
    answers.add([1, 2, 3, 4, 5])
    answers.add([9, 2, 3, 4, 6, 7])
    place, matched = answers.find([8, 9, 2, 3, 4])
    assert matched == 4
    assert answers.tokens[place : place + 3].tolist() == [6, 7, -1]
    assert answers.find([3, 4]) == answers.find([7, 8, 9]) == (0, 0)
    assert answers.find([4, 5, 9]) == (0, 0), "no match reaches over the end of an answer"


def test_answers_and_tenants_are_bounded() -> None:
    answers, tokens = Answers(), random.Random(1).choices(range(1000), k=5000)
    for n in range(20):
        answers.add([n, *tokens])
        assert len(answers.tokens) <= MAX_TOKENS
    assert answers.find([19, *tokens[:3]])[1] == 4
    answers.add(list(range(2 * MAX_TOKENS)))
    assert len(answers.tokens) <= MAX_TOKENS
    library = Library()
    first = library.of("a", b"")
    for n in range(MAX_TENANTS):
        library.of(str(n), b"")
    assert library.of("a", b"") is not first


def test_drafters_of_a_sequence() -> None:
    def names(n_own: int, **params: int) -> list[tuple[str, int]]:
        found, _ = Drafters(n_own).of(Submit(0, [1], SamplingParams(**params)), b"")
        return [(drafter.name, most) for drafter, most in found]

    assert names(0) == []
    assert names(4) == names(4, prompt_lookup_num_tokens=0) == [("self", 4)]
    assert names(4, prompt_lookup_num_tokens=7) == [("prompt_lookup", 7), ("answers", 7), ("self", 4)]
