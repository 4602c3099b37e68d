"""Guesses against a search through all that came before; trust and stakes against sums by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.prompt_lookup import NGRAM, STEP_ROWS, Lookup, Stakes


def guess_by_search(tokens: list[int], most: int) -> list[int]:
    """Token by token, each after the latest earlier occurrence of the last tokens of the text as it was."""
    for end in range(len(tokens) - 1, NGRAM - 1, -1):
        if tokens[end - NGRAM : end] == tokens[-NGRAM:]:
            found = list(tokens)
            for ahead in range(most):
                found.append(found[end + ahead])
            return found[len(tokens) :]
    return []


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=12), st.integers(0, 9))
def test_guesses_are_what_followed_last_time(parts: list[list[int]], most: int) -> None:
    lookup, tokens = Lookup(), list[int]()
    for part in parts:  # as the engine asks: now and then, the text grown by any number of tokens
        tokens += part
        assert lookup.guess(tokens, most) == guess_by_search(tokens, most)


def test_trust_follows_the_guesses_that_were_right() -> None:
    lookup = Lookup()
    before = lookup.trust
    assert lookup.guess([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    lookup.judge([4, 9])  # right, then wrong
    assert lookup.trust == pytest.approx((before + (1 - before) / 8) * 7 / 8)
    after = lookup.trust
    lookup.judge([7])  # nothing was guessed
    assert lookup.trust == after


def test_guesses_never_computed_are_judged_as_well() -> None:
    lookup = Lookup()
    for _ in range(40):
        lookup.guess([1, 2, 3, 4, 5, 1, 2, 3], 8)
        lookup.judge([4])
    assert lookup.trust > 0.95


def gain(trust: float, n: int, n_tokens: int) -> float:
    """Tokens that a step gives for its time, a row's, with n guesses beside `n_tokens`."""
    return (n_tokens + sum(trust**k for k in range(1, n + 1))) / (STEP_ROWS + n_tokens + n)


@pytest.mark.parametrize("n_tokens", [1, 2, 8, 32, 500])
@pytest.mark.parametrize("trust", [0.0, 0.1, 0.2, 0.5, 0.8, 0.97, 0.999])
def test_the_bet_is_the_most_profitable(trust: float, n_tokens: int) -> None:
    best = max(range(17), key=lambda n: gain(trust, n, n_tokens))
    assert Stakes(n_tokens).bet(trust, 16) == best
    assert Stakes(n_tokens).bet(trust, 3) == min(best, 3)


def test_load_and_mistrust_end_betting() -> None:
    assert Stakes(1).bet(0.1, 8) == 0
    assert Stakes(64).bet(0.9, 8) == 0
    shared = Stakes(2)
    assert shared.bet(0.9, 16) > shared.bet(0.6, 16)  # what the first took makes rows dearer for the second
