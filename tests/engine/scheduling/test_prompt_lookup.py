"""Drafts against a search through the whole text; acceptance and the draft budget against sums by hand."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.scheduling.drafts import GAIN, DraftBudget
from service.engine.scheduling.prompt_lookup import CANDIDATES, MATCHES, PromptLookup


def match(tokens: list[int], end: int) -> int:
    """How many tokens before `end` are the last ones of the text, of the most that count."""
    return max(n for n in range(min(end, MATCHES[-1]) + 1) if tokens[end - n : end] == tokens[len(tokens) - n :])


def draft_by_search(tokens: list[int], n_tokens: int) -> tuple[list[int], int]:
    """The tokens after the place with the longest match, and its length. The draft may copy its own beginning."""
    places = [end for end in range(len(tokens) - 1, 1, -1) if match(tokens, end) > 1]
    if not places:
        return [], 0
    end = max(places[:CANDIDATES], key=lambda end: match(tokens, end))
    found = list(tokens)
    for ahead in range(n_tokens):
        found.append(found[end + ahead])
    return found[len(tokens) :], match(tokens, end)


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=12), st.integers(0, 9))
def test_a_draft_is_what_followed_the_longest_match(parts: list[list[int]], n_tokens: int) -> None:
    lookup, tokens = PromptLookup(), [0, 1]
    lookup.acceptances = [1, 2, 3, 4]
    for part in parts:  # as in the engine, the text grows by any number of tokens between drafts
        tokens += part
        draft, length = draft_by_search(tokens, n_tokens)
        assert lookup.draft(tokens, n_tokens) == draft
        lengths = range(length, length + len(draft))
        assert lookup.chances == [sum(least <= length for least in MATCHES) for length in lengths]


def test_acceptance_is_learned_for_each_length_of_match() -> None:
    """Three tokens match before the first draft token, four before the second and seven before the fifth."""
    lookup = PromptLookup()
    one, two, four, eight = lookup.acceptances
    assert lookup.draft([1, 2, 3, 4, 5, 1, 2, 3], 5) == [4, 5, 1, 2, 3]
    assert lookup.chances == [two, four, four, four, four]
    lookup.observe([4, 9])  # right, then wrong
    assert lookup.acceptances == pytest.approx([one, two + (1 - two) / 8, four * 7 / 8, eight])
    after = [*lookup.acceptances]
    lookup.observe([7])  # there was no draft
    assert lookup.acceptances == after


def test_a_copy_goes_on_behind_a_changed_word() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    lookup = PromptLookup()
    assert lookup.draft(text, 4) == [3, 4, 5, 6]
    lookup.observe([3, 4, 9])  # 9 in place of 5
    assert lookup.draft([*text, 3, 4, 9], 3) == [6, 7, 8]
    assert lookup.chances[0] == lookup.acceptances[0]
    lookup.observe([9])  # behind two changed words in a row it does not go on
    assert lookup.draft([*text, 3, 4, 9, 0], 3) == []


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
    assert lookup.acceptances[1] > 0.95


def gains(chances: list[float], n_tokens: int, fixed_rows: float) -> list[float]:
    """For each draft token beside `n_tokens`: its expected tokens over those that its row costs."""
    expected = [n_tokens + total for total in accumulate(accumulate(chances, mul), initial=0.0)]
    rows = [fixed_rows + n_tokens + n for n in range(len(expected))]
    return [
        (after - before) / (before / cost) for before, after, cost in zip(expected, expected[1:], rows, strict=False)
    ]


@pytest.mark.parametrize("n_tokens", [1, 2, 8, 32, 500])
@pytest.mark.parametrize("first", [0.0, 0.05, 0.1, 0.5, 0.8, 0.97, 0.999])
@pytest.mark.parametrize("later", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("fixed_rows", [0.5, 3, 12, 200])
def test_a_draft_ends_before_a_token_that_gains_too_little(
    first: float, later: float, n_tokens: int, fixed_rows: float
) -> None:
    chances = [first] + [later] * 15
    n = DraftBudget(n_tokens, fixed_rows).add(chances)
    each = gains(chances, n_tokens, fixed_rows)
    rounding = 1e-9  # two sums of one value
    assert min(each[:n], default=GAIN) > GAIN - rounding
    assert n == len(chances) or each[n] < GAIN + rounding
    assert DraftBudget(n_tokens, fixed_rows).add(chances[:3]) == min(n, 3)
    assert DraftBudget(n_tokens, fixed_rows).is_spent == (DraftBudget(n_tokens, fixed_rows).add([1.0]) == 0)


def test_load_and_rejections_end_drafting() -> None:
    assert DraftBudget(1, 10).add([0.05] * 8) == 0
    assert DraftBudget(128, 10).add([0.9] * 8) == 0
    shared = DraftBudget(2, 10)
    assert shared.add([0.9] * 16) > shared.add([0.6] * 16)  # the first one's draft makes rows more expensive for others
