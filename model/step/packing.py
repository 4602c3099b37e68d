"""StepBatch to PackedInputs: the only place where ints become tensors.

All new tokens of a step are concatenated into one row axis `[T]`, without padding. Worked example: three slices of
3, 4 and 5 tokens from position 0 give T = 12, positions 0-2, 0-3, 0-4 and spans whose rows are 0-3, 3-7, 7-12.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.attention.inputs import TABLE_WIDTH, PackedInputs, PoolInputs
from model.batch import UNKNOWN, Slice, StepBatch
from model.machine.transfers import Ints, upload


class Columns(NamedTuple):
    """A step on the host: token ids [T], positions [T] and rows to sample after [D].

    In each pool `slots` [T], `PoolInputs.table` [S, 5] and `pages` [P].
    """

    tokens: Ints
    positions: Ints
    sample_rows: Ints
    slots: Sequence[Ints]
    tables: Sequence[Ints]
    pages: Sequence[Ints]

    @property
    def arrays(self) -> list[Ints]:
        """Return all of them in this order, flat."""
        return [*self[:3], *self.slots, *[table.ravel() for table in self.tables], *self.pages]


class Rows(NamedTuple):
    """Columns [S] of the slices, `first` is the first row of each; then columns [T] of the rows."""

    first: Ints
    lengths: Ints
    starts: Ints
    owners: Ints
    positions: Ints


def pack(
    batch: StepBatch,
    page_size: int,
    windows: Sequence[int | None],
    device: torch.device,
    last_rows: Mapping[int, int] = MappingProxyType({}),
) -> PackedInputs:
    """Copy `columns` to tensors on `device`."""
    step = columns(batch, page_size, windows, last_rows)
    return inputs_of(upload(step.arrays, device), windows, page_size, step.tables)


def inputs_of(
    tensors: Sequence[Tensor], windows: Sequence[int | None], page_size: int, numbers: Sequence[Ints]
) -> PackedInputs:
    """Make the inputs whose tensors are as `Columns.arrays`, with `PoolInputs.numbers` of each pool."""
    n, (tokens, positions, rows, *pooled) = len(windows), tensors
    tables = [table.view(-1, TABLE_WIDTH) for table in pooled[n : 2 * n]]
    pools = zip(windows, repeat(page_size, n), pooled[:n], pooled[2 * n :], tables, numbers, strict=True)
    return PackedInputs(tokens, positions, tuple([PoolInputs(*pool) for pool in pools]), rows)


def columns(
    batch: StepBatch,
    page_size: int,
    windows: Sequence[int | None],
    last_rows: Mapping[int, int] = MappingProxyType({}),
    n_sampled: Sequence[int] | None = None,
) -> Columns:
    """Concatenate all slices. `windows` has one entry for each pool, like `Slice.tables`.

    `n_sampled` are the numbers of `samples` of the slices, if they are known: counting them takes time.
    An UNKNOWN token becomes -1 - `last_rows[sequence_id]`: the row of the token among those that the last step sampled.
    """
    slices = batch.slices
    rows = _rows(slices)
    placed = [_place(slices, rows, index, window, page_size) for index, window in enumerate(windows)]
    slots = [_slots(rows, pages, table, page_size) for pages, table in placed]
    pages, tables = zip(*placed, strict=True)
    return Columns(_tokens(slices, last_rows), rows.positions, sample_rows(slices, n_sampled), slots, tables, pages)


def score_rows(slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """Return the first row of each slice, and the number of its rows whose logits score prompt tokens."""
    lengths = [item.stop - item.start for item in slices]
    return list(zip(accumulate(lengths, initial=0), map(_n_scored, slices), strict=False))


def _rows(slices: Sequence[Slice]) -> Rows:
    starts = np.array([item.start for item in slices], dtype=np.int64)
    lengths = np.array([item.stop for item in slices], dtype=np.int64) - starts
    first = _before(lengths)
    owners = np.repeat(np.arange(len(slices)), lengths)
    return Rows(first, lengths, starts, owners, np.arange(len(owners)) + (starts - first)[owners])


def _before(counts: Ints) -> Ints:
    """Return the sum of the counts before each."""
    sums: Ints = counts.cumsum() - counts
    return sums


def _tokens(slices: Sequence[Slice], last_rows: Mapping[int, int]) -> Ints:
    tokens: list[int] = []
    for item in slices:
        if item.stop - item.start == 1:
            tokens.append(item.tokens[item.start])
        else:
            tokens += item.tokens[item.start : item.stop]
        if tokens[-1] == UNKNOWN:
            tokens[-1] = -1 - last_rows[item.sequence_id]
    return np.array(tokens, dtype=np.int64)


def sample_rows(slices: Sequence[Slice], n_sampled: Sequence[int] | None = None) -> Ints:
    """Return as many of the last rows of each slice as it has `samples`; see `columns`."""
    counts = np.array([len(item.samples) for item in slices] if n_sampled is None else n_sampled, dtype=np.int64)
    ends = np.cumsum([item.stop - item.start for item in slices])
    found: Ints = np.repeat(ends - counts - _before(counts), counts) + np.arange(counts.sum())
    return found


def _n_scored(item: Slice) -> int:
    """Count the rows that score prompt tokens. Row p predicts token p + 1: the last prompt position scores none."""
    if item.params.prompt_logprobs is None:
        return 0
    return max(0, min(item.stop, item.n_prompt - 1) - item.start)


def _place(slices: Sequence[Slice], rows: Rows, index: int, window: int | None, page_size: int) -> tuple[Ints, Ints]:
    """Return the page ids [P] of the visible blocks of every slice, and `PoolInputs.table`."""
    first_keys = np.zeros_like(rows.starts) if window is None else np.maximum(0, rows.starts - window + 1)
    first_blocks = first_keys // page_size
    n_pages = (rows.starts + rows.lengths - 1) // page_size + 1 - first_blocks
    tables = [item.tables[index] for item in slices]
    pages = [
        table.pages if first == table.first_block and n == len(table.pages) else _visible(item, index, first, n)
        for item, table, first, n in zip(slices, tables, first_blocks.tolist(), n_pages.tolist(), strict=True)
    ]
    table = np.stack((rows.first, rows.lengths, rows.starts, first_keys, _before(n_pages)), axis=1)
    return np.frombuffer(b"".join(map(_array, pages)), dtype=np.int64), table


def _array(pages: Sequence[int]) -> "array[int]":
    return pages if isinstance(pages, array) else array("q", pages)


def _visible(item: Slice, index: int, first: int, n: int) -> Sequence[int]:
    """Return the pages of `n` blocks from `first` on."""
    held, pages = item.tables[index]
    place = first - held
    if place < 0 or place + n > len(pages):
        raise ValueError(
            f"sequence {item.sequence_id} needs blocks {first}..{first + n - 1} of pool {index}, its table has "
            f"{held}..{held + len(pages) - 1}"
        )
    return pages[place : place + n]


def _slots(rows: Rows, pages: Ints, table: Ints, page_size: int) -> Ints:
    """Return the slot [T] of every new token: `page id * page_size + position % page_size`."""
    shift = table[:, 4] - table[:, 3] // page_size
    blocks, places = np.divmod(rows.positions, page_size)
    return pages[blocks + shift[rows.owners]] * page_size + places
