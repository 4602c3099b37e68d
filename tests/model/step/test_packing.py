"""Packing: rows, positions and slots of a step."""

import pytest
import torch

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


def test_three_prompts_of_three_four_and_five() -> None:
    """12 rows, no padding, positions 0-2, 0-3, 0-4, a 12 x 12 block-diagonal causal mask."""
    from tests.model.attention.reference import ReferenceAttention

    items = [part([10 * n + i for i in range(n)], 0, n, [n]) for n in (3, 4, 5)]
    inputs = pack(StepBatch(tuple(items)), 32, [None], CPU)
    assert inputs.tokens.tolist() == [30, 31, 32, 40, 41, 42, 43, 50, 51, 52, 53, 54]
    assert inputs.positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert inputs.sample_rows.tolist() == [2, 6, 11]
    mask = ReferenceAttention().prepare(inputs.pools[0]).mask
    assert torch.equal(mask, torch.block_diag(*(torch.ones(n, n).tril() for n in (3, 4, 5))).bool())


def test_slots_follow_the_page_table() -> None:
    """Page size 4: positions 3..6 are in the last slot of block 0 and the first three of block 1."""
    inputs = pack(StepBatch((part(list(range(7)), 3, 7, [9, 2]),)), 4, [None], CPU)
    (pool,) = inputs.pools
    assert pool.slots.tolist() == [39, 8, 9, 10]
    assert pool.pages.tolist() == [9, 2]
    assert pool.spans[0].n_keys == 7


def test_window_leaves_out_what_it_cannot_see() -> None:
    """Page size 4, window 5, position 9: keys 5..9 in blocks 1 and 2; block 0 may be gone."""
    (pool,) = pack(StepBatch((part(list(range(10)), 9, 10, [6, 7], first_block=1),)), 4, [5], CPU).pools
    (span,) = pool.spans
    assert pool.pages.tolist() == [6, 7]
    assert (span.first_key, span.n_keys) == (5, 5)
    assert pool.slots.tolist() == [29]


def test_pages_still_held_but_no_longer_visible_are_skipped() -> None:
    (pool,) = pack(StepBatch((part(list(range(10)), 9, 10, [3, 6, 7]),)), 4, [5], CPU).pools
    assert pool.pages.tolist() == [6, 7]


def test_table_says_of_spans_what_kernels_read() -> None:
    """Each pool's table has the values of its spans: row, queries, start, first visible key and entry of `pages`."""
    tables = (PageTable(0, [1, 2, 3]), PageTable(1, [4, 5]))
    one = Slice(0, list(range(10)), 10, 9, 10, tables, SamplingParams())
    two = Slice(1, list(range(3)), 3, 0, 3, (PageTable(0, [6]), PageTable(0, [7])), SamplingParams())
    full, windowed = pack(StepBatch((one, two)), 4, [None, 5], CPU).pools
    assert full.table.tolist() == [[0, 1, 9, 0, 0], [1, 3, 0, 0, 3]]
    assert windowed.table.tolist() == [[0, 1, 9, 5, 0], [1, 3, 0, 0, 2]]
    for pool in (full, windowed):
        assert pool.table.dtype == torch.int64
        assert [tuple(row) for row in pool.table.tolist()] == [
            (span.row, span.n_queries, span.start, span.first_key, span.page) for span in pool.spans
        ]


def test_one_entry_for_each_pool() -> None:
    tables = (PageTable(0, [5, 6]), PageTable(1, [8]))
    item = Slice(0, list(range(6)), 6, 5, 6, tables, SamplingParams())
    full, windowed = pack(StepBatch((item,)), 4, [None, 2], CPU).pools
    assert (full.slots.tolist(), windowed.slots.tolist()) == ([25], [33])
    assert (full.spans[0].n_keys, windowed.spans[0].n_keys) == (6, 2)


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
