"""A step as tensors, for the network; and the part of it in one pool, for attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from torch import Tensor

from model.machine.transfers import Ints

TABLE_WIDTH = 5
"""Columns of `PoolInputs.table`."""


class Span(NamedTuple):
    """One slice in one pool, in host memory.

    Rows `row..row+n_queries-1` of the batch are the positions of the sequence from `start` on. The visible keys are
    positions `first_key..start+n_queries-1`. They are in `n_pages` pages, from entry `page` of `PoolInputs.pages` on,
    and begin `offset` slots into the first page. `first_slot` is the slot of the first key if the page ids are
    consecutive, else None.
    """

    row: int
    n_queries: int
    start: int
    first_key: int
    page: int
    n_pages: int
    offset: int
    first_slot: int | None

    @property
    def n_keys(self) -> int:
        return self.start + self.n_queries - self.first_key


class Spans(Sequence[Span]):
    """The spans of `PoolInputs.table`, from its copy `table` [S, 5] in host memory and all `pages` [P].

    They are made when one is first read. A step that is replayed from a graph reads none.
    """

    def __init__(self, table: Ints, pages: Ints, page_size: int) -> None:
        self._table = table
        self._pages = pages
        self._page_size = page_size

    @cached_property
    def _made(self) -> tuple[Span, ...]:
        pages, size = self._pages, self._page_size
        row, n_queries, start, first_key, page = self._table.T
        n_pages = (start + n_queries - 1) // size - first_key // size + 1
        offset = first_key % size
        breaks = np.concatenate(([0], np.cumsum(np.diff(pages) != 1)))  # [P], how many lie before a page
        consecutive = breaks[page + n_pages - 1] == breaks[page]
        slots = np.where(consecutive, pages[page] * size + offset, -1).tolist()
        columns = (column.tolist() for column in (row, n_queries, start, first_key, page, n_pages, offset))
        return tuple(map(Span, *columns, (None if slot < 0 else slot for slot in slots)))

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, where: int) -> Span: ...

    @overload
    def __getitem__(self, where: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, where: int | slice) -> Span | tuple[Span, ...]:
        return self._made[where]

    def __iter__(self) -> Iterator[Span]:
        return iter(self._made)


@dataclass(frozen=True, slots=True)
class PoolInputs:
    """A step in one pool: `slots` [T] to write to, `pages` [P] of all spans in logical order.

    `table` [S, 5] int64 has the fields of `spans` that kernels read: row, n_queries, start, first_key and page.
    A step may be padded to a fixed size: a padding row has slot -1, which is never written, and a padding slice has no
    queries.
    """

    window: int | None
    page_size: int
    slots: Tensor
    pages: Tensor
    table: Tensor
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """A step as tensors: `tokens` [T], `positions` [T], one entry for each pool, and the rows that need logits.

    After each of `sample_rows` [D] a token is sampled; the rows of draft tokens are among them.
    `images`: rows [N] that have embeddings [N, dim] of images in place of those of their tokens, and these embeddings.
    """

    tokens: Tensor
    positions: Tensor
    pools: tuple[PoolInputs, ...]
    sample_rows: Tensor
    images: tuple[Tensor, Tensor] | None = None
