"""A step as tensors, for the network; and the part of it in one pool, for attention."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Span(NamedTuple):
    """One slice in one pool, in host memory.

    Rows `row..row+n_queries-1` of the batch are the positions of the sequence from `start` on. The visible keys are
    positions `first_key..start+n_queries-1`. Their pages begin at entry `page` of `PoolInputs.pages`.
    """

    row: int
    n_queries: int
    start: int
    first_key: int
    page: int

    @property
    def n_keys(self) -> int:
        return self.start + self.n_queries - self.first_key


TABLE_WIDTH = len(Span._fields)
"""Columns of `PoolInputs.table`."""


@dataclass(frozen=True)
class PoolInputs:
    """A step in one pool: `slots` [T] to write to, `pages` [P] of all spans in logical order.

    `table` [S, 5] int64 has the `spans` for kernels. `numbers` [S, 5] are those on the host; for a graph, the longest.
    A step may be padded to a fixed size: a padding row has slot -1, which is never written, and a padding slice has no
    queries.
    """

    window: int | None
    page_size: int
    slots: Tensor
    pages: Tensor
    table: Tensor
    numbers: NDArray[np.int64]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Return the slices of the step, for backends that read them on the host."""
        return tuple(map(Span._make, self.numbers.tolist()))


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """A step as tensors: `tokens` [T], `positions` [T], one entry for each pool, and the rows that need logits.

    After each of `sample_rows` [D] a token is sampled; the rows of draft tokens are among them.
    `embedded`: rows [N] that have embeddings [N, dim] of images or audio in place of their tokens', and these.
    """

    tokens: Tensor
    positions: Tensor
    pools: tuple[PoolInputs, ...]
    sample_rows: Tensor
    embedded: tuple[Tensor, Tensor] | None = None
