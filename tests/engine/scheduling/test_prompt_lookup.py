"""Drafts against a search through the whole text; acceptance and the draft budget against sums by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.scheduling.prompt_lookup import NGRAM, STEP_ROWS, DraftBudget, PromptLookup


def draft_by_search(tokens: list[int], n_tokens: int) -> list[int]:
    """The tokens after the latest earlier occurrence of the last NGRAM tokens. The draft may copy its own beginning."""
    for end in range(len(tokens) - 1, NGRAM - 1, -1):
        if tokens[end - NGRAM : end] == tokens[-NGRAM:]:
            found = list(tokens)
            for ahead in range(n_tokens):
                found.append(found[end + ahead])
            return found[len(tokens) :]
    return []


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=12), st.integers(0, 9))
def test_a_draft_is_what_followed_last_time(parts: list[list[int]], n_tokens: int) -> None:
    lookup, tokens = PromptLookup(), list[int]()
    for part in parts:  # as in the engine, the text grows by any number of tokens between drafts
        tokens += part
        assert lookup.draft(tokens, n_tokens) == draft_by_search(tokens, n_tokens)


def test_acceptance_follows_the_draft_tokens_that_were_right() -> None:
    lookup = PromptLookup()
    before = lookup.acceptance
    assert lookup.draft([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    lookup.observe([4, 9])  # right, then wrong
    assert lookup.acceptance == pytest.approx((before + (1 - before) / 8) * 7 / 8)
    after = lookup.acceptance
    lookup.observe([7])  # there was no draft
    assert lookup.acceptance == after


IMAGE = 9


@pytest.mark.parametrize(
    ("tokens", "draft"),
    [
        ([1, 2, 3, 4, IMAGE, IMAGE, 5, 6, 1, 2], [3, 4]),  # it ends before the image
        ([1, 2, IMAGE, IMAGE, 5, 6, 1, 2], []),
        ([1, 2, 7, 1, 2, IMAGE, IMAGE, 5, 1, 2], [7, 1, 2]),  # the earlier place, which an image does not follow
        ([1, 2, 3, IMAGE, 5, 5, 5], [5, 5, 5, 5]),
    ],
)
def test_no_draft_has_tokens_of_an_image(tokens: list[int], draft: list[int]) -> None:
    assert PromptLookup(IMAGE).draft(tokens, 4) == draft


def test_draft_tokens_never_computed_count_as_well() -> None:
    lookup = PromptLookup()
    for _ in range(40):
        lookup.draft([1, 2, 3, 4, 5, 1, 2, 3], 8)
        lookup.observe([4])
    assert lookup.acceptance > 0.95


def gain(acceptance: float, n: int, n_tokens: int) -> float:
    """Expected tokens of a step divided by its cost in rows, with n draft tokens beside `n_tokens`."""
    return (n_tokens + sum(acceptance**k for k in range(1, n + 1))) / (STEP_ROWS + n_tokens + n)


@pytest.mark.parametrize("n_tokens", [1, 2, 8, 32, 500])
@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.2, 0.5, 0.8, 0.97, 0.999])
def test_the_draft_is_the_most_profitable(acceptance: float, n_tokens: int) -> None:
    best = max(range(17), key=lambda n: gain(acceptance, n, n_tokens))
    assert DraftBudget(n_tokens).add(acceptance, 16) == best
    assert DraftBudget(n_tokens).add(acceptance, 3) == min(best, 3)


def test_load_and_rejections_end_drafting() -> None:
    assert DraftBudget(1).add(0.1, 8) == 0
    assert DraftBudget(64).add(0.9, 8) == 0
    shared = DraftBudget(2)
    assert shared.add(0.9, 16) > shared.add(0.6, 16)  # the first one's draft makes rows more expensive for the second
