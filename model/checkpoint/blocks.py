"""Rows of weights in groups of 32 channels, the layout that GGUF's simple kinds and the compiled kernels share."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.kernels.groups import BLOCK_GROUP

HALF = BLOCK_GROUP // 2
BlockForm = tuple[int, bool]
"""The bytes of the integers in a group, and whether there are minima."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows in groups of 32 channels: `w = scale * q + min`, or `scale * (q - zero)` without minima.

    `quants` is uint8 [n_out, n_in/32, 16], channel j in the lower and j + 16 in the upper half of byte j (q in 0..15,
    zero 8), or int8 [n_out, n_in/32, 32] (zero 0). `scales` and `mins` are float16 [n_out, n_in/32]. The 4-bit kinds
    are GGUF's Q4_0 (no minima) and Q4_1, the 8-bit kind without minima is its Q8_0.
    """

    quants: Tensor
    scales: Tensor
    mins: Tensor | None = None

    def __len__(self) -> int:
        return len(self.scales)

    @property
    def form(self) -> BlockForm:
        """Return bytes of integers in a group, and whether there are minima."""
        return self.quants.shape[2], self.mins is not None

    @property
    def zero(self) -> int:
        """Return the q that stands for 0 where there are no minima."""
        return 8 if self.form == (HALF, False) else 0

    def checked(self) -> "Blocks":
        """Return the same blocks. Raises ValueError if a scale or a minimum is not finite."""
        for table in (self.scales, self.mins):
            if table is not None:
                check_finite(table)
        return self

    def columns(self, columns: range) -> "Blocks":
        """Select input channels, in whole groups."""
        own = slice(columns.start // BLOCK_GROUP, columns.stop // BLOCK_GROUP)
        return Blocks(self.quants[:, own], self.scales[:, own], None if self.mins is None else self.mins[:, own])

    def in_form(self, form: BlockForm) -> "Blocks":
        """Return the same weights in a form that holds them."""
        found = self if self.form[0] == form[0] else Blocks(self.integers(), self.scales, self.mins)
        if form[1] and found.mins is None:
            return Blocks(found.quants, found.scales, found.scales * -found.zero)
        return found

    def integers(self) -> Tensor:
        """Return q - zero, int8 [n_out, n_in/32, 32]."""
        if self.quants.dtype is torch.int8:
            return self.quants
        return torch.cat((self.quants & 15, self.quants >> 4), dim=-1).view(torch.int8).sub_(self.zero)

    def floats(self) -> Tensor:
        """Decode to float32 [n_out, n_in], with the same bits as from the decoders of the gguf package."""
        values = self.integers() * self.scales.float()[:, :, None]
        return (values if self.mins is None else values.add_(self.mins.float()[:, :, None])).flatten(1)


def widest(forms: Iterable[BlockForm]) -> BlockForm:
    """Return the narrowest form that holds all of these exactly."""
    n_bytes, with_minima = zip(*forms, strict=True)
    return max(n_bytes), any(with_minima)


def joined(q: Tensor) -> Tensor:
    """Pack integers 0..15, uint8 [..., 32] -> [..., 16], as `Blocks.quants` has them."""
    return q[..., :HALF] | q[..., HALF:] << 4


def quantize8(weight: Tensor) -> Blocks:
    """Quantize weight [n, k] float32 to 8 bits: a group's scale is its greatest magnitude / 127."""
    groups = weight.unflatten(1, (-1, BLOCK_GROUP))
    scales = (groups.abs().amax(dim=2) / 127).half()
    q = (groups * inverse(scales)[:, :, None]).round_().clamp_(-127, 127)
    return Blocks(q.to(torch.int8), scales)


def inverse(scales: Tensor) -> Tensor:
    """Return 1 / scale in float32, 0 for the scale 0."""
    return torch.where(scales != 0, 1 / scales.float(), 0.0)


def check_finite(values: Tensor) -> Tensor:
    """Return the values. Raises ValueError if one is not finite."""
    if values.numel() and not torch.stack(values.aminmax()).isfinite().all():  # NaN is both least and greatest
        raise ValueError("a value is not finite")
    return values
