"""StepBatch to PackedInputs: the only place where ints become tensors.

All new tokens of a step are concatenated into one row axis `[T]`, without padding. Worked example: three slices of
3, 4 and 5 tokens from position 0 give T = 12, positions 0-2, 0-3, 0-4 and spans whose rows are 0-3, 3-7, 7-12.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch

from model.attention.inputs import TABLE_WIDTH, PackedInputs, PoolInputs, Span
from model.batch import UNKNOWN, Slice, StepBatch
from model.machine.transfers import Ints, upload


def pack(
    batch: StepBatch,
    page_size: int,
    windows: Sequence[int | None],
    device: torch.device,
    last_rows: Mapping[int, int] = MappingProxyType({}),
) -> PackedInputs:
    """All slices concatenated. `windows` has one entry for each pool, like `Slice.tables`.

    An UNKNOWN token becomes -1 - `last_rows[sequence_id]`: the row of the token among those that the last step sampled.
    """
    slices = batch.slices
    tokens: list[int] = []
    rows: list[int] = []
    for item in slices:
        rows.append(len(tokens))
        tokens.extend(item.tokens[item.start : item.stop])
        if tokens[-1] == UNKNOWN:
            tokens[-1] = -1 - last_rows[item.sequence_id]
    starts = np.array([item.start for item in slices], dtype=np.int64)
    lengths = np.array([item.stop - item.start for item in slices], dtype=np.int64)
    owner = np.repeat(np.arange(len(slices)), lengths)
    positions = np.arange(len(tokens)) + (starts - np.array(rows, dtype=np.int64))[owner]
    ends = [row + view.stop - view.start - 1 for row, item in zip(rows, slices, strict=True) for view in item.samples]

    arrays: list[Ints] = [np.array(tokens, dtype=np.int64), positions, np.array(ends, dtype=np.int64)]
    spans: list[tuple[Span, ...]] = []
    for index, window in enumerate(windows):
        pages, pool_spans = _place(slices, rows, index, window, page_size)
        arrays += [_slots(positions, owner, pages, pool_spans, page_size), pages, _table(pool_spans)]
        spans.append(pool_spans)
    token_ids, where, sample_rows, *placed = upload(arrays, device)
    return PackedInputs(
        tokens=token_ids,
        positions=where,
        pools=tuple(
            PoolInputs(window, page_size, slots, pages, table.view(-1, TABLE_WIDTH), pool_spans)
            for window, slots, pages, table, pool_spans in zip(
                windows, placed[::3], placed[1::3], placed[2::3], spans, strict=True
            )
        ),
        sample_rows=sample_rows,
        score_rows=tuple((row, _n_scored(item)) for row, item in zip(rows, slices, strict=True)),
    )


def _n_scored(item: Slice) -> int:
    """The number of rows that score prompt tokens. Row p predicts token p + 1: the last prompt position scores none."""
    return min(item.stop, item.n_prompt - 1) - item.start if item.scores_prompt else 0


def _place(
    slices: Sequence[Slice], rows: Sequence[int], index: int, window: int | None, page_size: int
) -> tuple[Ints, tuple[Span, ...]]:
    """Page ids [P] of the visible blocks of every slice, and the spans over them."""
    pages: list[int] = []
    spans: list[Span] = []
    for row, item in zip(rows, slices, strict=True):
        first_key = 0 if window is None else max(0, item.start - window + 1)
        visible = _visible_pages(item, index, first_key, page_size)
        offset = first_key % page_size
        consecutive = visible[-1] - visible[0] == len(visible) - 1 and _ascends(visible)
        spans.append(
            Span(
                row=row,
                n_queries=item.stop - item.start,
                start=item.start,
                first_key=first_key,
                page=len(pages),
                n_pages=len(visible),
                offset=offset,
                first_slot=visible[0] * page_size + offset if consecutive else None,
            )
        )
        pages.extend(visible)
    return np.array(pages, dtype=np.int64), tuple(spans)


def _table(spans: Sequence[Span]) -> Ints:
    """`PoolInputs.table`, flat."""
    rows = [(span.row, span.n_queries, span.start, span.first_key, span.page) for span in spans]
    return np.array(rows, dtype=np.int64).ravel()


def _ascends(pages: Sequence[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(pages))


def _visible_pages(item: Slice, index: int, first_key: int, page_size: int) -> Sequence[int]:
    table = item.tables[index]
    first = first_key // page_size - table.first_block
    last = (item.stop - 1) // page_size - table.first_block
    if first < 0 or last >= len(table.pages):
        raise ValueError(
            f"sequence {item.sequence_id} needs blocks {first + table.first_block}..{last + table.first_block} of pool "
            f"{index}, its table has {table.first_block}..{table.first_block + len(table.pages) - 1}"
        )
    return table.pages[first : last + 1]


def _slots(positions: Ints, owner: Ints, pages: Ints, spans: Sequence[Span], page_size: int) -> Ints:
    """Slot [T] of every new token: `page id * page_size + position % page_size`."""
    shift = np.array([span.page - span.first_key // page_size for span in spans], dtype=np.int64)
    return pages[positions // page_size + shift[owner]] * page_size + positions % page_size
