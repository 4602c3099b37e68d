"""Tokens that the last step sampled, still on the device: the next step may be launched before the host reads them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.batch import Slice, SliceOutput


@dataclass(frozen=True, slots=True)
class LastTokens:
    """`tokens` [N] that a step sampled, and for each sequence the row of its last token.

    A sequence for which the step sampled none, because of a fault, has row 0: it ends, and any token will do.
    """

    tokens: Tensor
    rows: Mapping[int, int]

    @classmethod
    def of(cls, slices: Sequence[Slice], tokens: Sequence[Tensor], device: torch.device) -> "LastTokens":
        if not slices:  # a step of chunks: a graph has no tokens then, and a row of none cannot be read
            tokens = [torch.zeros(1, dtype=torch.int64, device=device)]
        rows = defaultdict(int, {item.sequence_id: row for row, item in enumerate(slices)})
        return cls(tokens[0] if len(tokens) == 1 else torch.cat([*tokens]), rows)

    @classmethod
    def known(cls, slices: Sequence[Slice], outputs: Sequence[SliceOutput], device: torch.device) -> "LastTokens":
        """Make the last tokens of a step whose results the host has."""
        last = [output.tokens[-1] if output.tokens else 0 for output in outputs]
        return cls.of(slices, [torch.tensor(last, device=device)], device)


def resolve(tokens: Tensor, sampled: Tensor) -> Tensor:
    """Fill in packed `tokens` [T]: -1 - row stands for the token in that row of `sampled` [N].

    Where no token could be sampled, any id will do: that sequence ends with an error.
    """
    found = sampled.index_select(0, (-1 - tokens).clamp(0, len(sampled) - 1)).clamp(min=0)
    return torch.where(tokens < 0, found, tokens)
