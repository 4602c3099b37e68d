"""Packing: which pages a step reads, and which of its rows need logits."""

import pytest

from model.batch import PageTable, Slice, StepBatch
from model.sampling_params import SamplingParams
from model.step.packing import pack, score_rows
from tests.model.driving import CPU


def part(
    tokens: list[int], start: int, stop: int, pages: list[int], first_block: int = 0, n_prompt: int | None = None,
    **params: int,
) -> Slice:  # fmt: skip
    tables = (PageTable(first_block, pages),)
    return Slice(7, tokens, n_prompt or len(tokens), start, stop, tables, SamplingParams(**params))


def test_pages_still_held_but_no_longer_visible_are_skipped() -> None:
    (pool,) = pack(StepBatch((part(list(range(10)), 9, 10, [3, 6, 7]),)), 4, [5], CPU).pools
    assert pool.pages.tolist() == [6, 7]


@pytest.mark.parametrize(("first_block", "pages"), [(1, [4, 5]), (0, [4])])
def test_missing_page_is_an_error(first_block: int, pages: list[int]) -> None:
    with pytest.raises(ValueError, match=r"sequence 7 needs blocks 0\.\.1 of pool 0"):
        pack(StepBatch((part(list(range(6)), 0, 6, pages, first_block),)), 4, [None], CPU)


def test_rows_that_need_logits() -> None:
    """Only a slice that ends at the last known token samples; prompt rows are scored on request."""
    items = (
        part([1, 2, 3, 4], 0, 2, [0]),
        part([1, 2, 3, 4], 2, 4, [1], n_prompt=3),
        part([1, 2, 3, 4], 1, 4, [2], n_prompt=3, prompt_logprobs=0),
        part([1, 2, 3], 0, 3, [3], max_tokens=0, prompt_logprobs=0),
    )
    inputs = pack(StepBatch(items), 4, [None], CPU)
    assert inputs.sample_rows.tolist() == [3, 6]
    assert score_rows(items) == [(0, 0), (2, 0), (4, 1), (7, 2)]


def test_a_draft_samples_after_each_of_its_tokens_and_before() -> None:
    known = part([1, 2, 3, 4, 5, 6], 2, 6, [0, 1], n_prompt=3)
    inputs = pack(StepBatch((known, known._replace(n_draft=2))), 4, [None], CPU)
    assert inputs.sample_rows.tolist() == [3, 5, 6, 7]
    assert inputs.positions.tolist() == [2, 3, 4, 5] * 2
