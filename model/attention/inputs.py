"""A step as tensors: what the network reads of it, and what attention reads of it in one pool."""

from dataclasses import dataclass

from torch import Tensor

TABLE_WIDTH = 5
"""Columns of `PoolInputs.table`."""


@dataclass(frozen=True, slots=True)
class Span:
    """One slice in one pool, on the host.

    Rows `row..row+n_queries-1` of the batch are positions `start..` of the sequence. Its visible keys are positions
    `first_key..start+n_queries-1`; they lie in `n_pages` pages from entry `page` of `PoolInputs.pages`, beginning
    `offset` slots into the first. `first_slot` is the slot of the first key if the pages follow one another, else None.
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


@dataclass(frozen=True, slots=True)
class PoolInputs:
    """A step in one pool: `slots` [T] to write to, `pages` [P] of all spans in logical order.

    `table` [S, 5] is what kernels read of `spans`: row, n_queries, start, first_key and page, int64. Who fills a step
    up to a fixed size gives the rows that are too many slot -1, which is never written, and the slices no queries.
    """

    window: int | None
    page_size: int
    slots: Tensor
    pages: Tensor
    table: Tensor
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """A step as tensors: `tokens` [T], `positions` [T], one entry a pool, and where logits are wanted.

    `sample_rows` [D] are the rows after which a token is drawn, those of drafts among them; `score_rows[i]` are the first
    row and the number of rows of slice i whose logits score prompt tokens.
    """

    tokens: Tensor
    positions: Tensor
    pools: tuple[PoolInputs, ...]
    sample_rows: Tensor
    score_rows: tuple[tuple[int, int], ...]
