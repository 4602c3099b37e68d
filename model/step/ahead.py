"""Tokens that the last step drew, still on the device: the next step may be launched before anybody has read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.batch import Slice, SliceOutput


@dataclass(frozen=True, slots=True)
class Drawn:
    """`tokens` [N] as drawn, and for each sequence that drew which of them is its last."""

    tokens: Tensor
    rows: Mapping[int, int]

    @classmethod
    def of(cls, slices: Sequence[Slice], tokens: Sequence[Tensor], device: torch.device) -> "Drawn":
        joined = torch.cat([*tokens]) if tokens else torch.zeros(1, dtype=torch.int64, device=device)
        return cls(joined, {item.sequence_id: row for row, item in enumerate(slices)})

    @classmethod
    def known(cls, slices: Sequence[Slice], outputs: Sequence[SliceOutput], device: torch.device) -> "Drawn":
        """From what was read already."""
        last = [output.tokens[-1] if output.tokens else 0 for output in outputs]
        return cls.of(slices, [torch.tensor(last, device=device)], device)


def resolve(tokens: Tensor, drawn: Tensor) -> Tensor:
    """`tokens` [T] as packed, -1 - row in place of those that are in a row of `drawn` [N].

    Where there was none to draw, any will do: that sequence ends with an error.
    """
    there = drawn.index_select(0, (-1 - tokens).clamp(0, len(drawn) - 1)).clamp(min=0)
    return torch.where(tokens < 0, there, tokens)
