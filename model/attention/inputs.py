"""A step as tensors, for the network; and the part of it in one pool, for attention."""

from dataclasses import dataclass

from torch import Tensor

TABLE_WIDTH = 5
"""Columns of `PoolInputs.table`."""


@dataclass(frozen=True, slots=True)
class Span:
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
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """A step as tensors: `tokens` [T], `positions` [T], one entry for each pool, and the rows that need logits.

    After each of `sample_rows` [D] a token is sampled; the rows of draft tokens are among them. `score_rows[i]` is the
    first row and the number of rows of slice i whose logits score prompt tokens.
    Rows `image_rows` [N] have the embeddings `image_values` [N, dim] of images in place of those of their tokens; both
    are None for a step without.
    """

    tokens: Tensor
    positions: Tensor
    pools: tuple[PoolInputs, ...]
    sample_rows: Tensor
    score_rows: tuple[tuple[int, int], ...]
    image_rows: Tensor | None = None
    image_values: Tensor | None = None
