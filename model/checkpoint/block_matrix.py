"""A matrix in groups of 32 channels, the layout that GGUF's simple kinds and the compiled kernels share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.kernels.groups import BLOCK_GROUP


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix [n_out, n_in] in groups of 32 channels: `w = scale * q + min`, or `scale * (q - zero)` without minima.

    `quants` is uint8 [n_out, n_in/32, 16], channel j in the lower and j + 16 in the upper half of byte j (q in 0..15,
    zero 8), or int8 [n_out, n_in/32, 32] (zero 0). `scales` and `mins` are float16 [n_out, n_in/32]. The 4-bit kinds
    are GGUF's Q4_0 (no minima) and Q4_1, the 8-bit kind without minima is its Q8_0.
    """

    quants: Tensor
    scales: Tensor
    mins: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix: (n_out, n_in)."""
        return len(self.scales), self.scales.shape[1] * BLOCK_GROUP

    @property
    def zero(self) -> int:
        """Return the q that stands for 0 where there are no minima."""
        return 8 if self.mins is None and self.quants.dtype is torch.uint8 else 0

    def __len__(self) -> int:
        return len(self.scales)

    def __getitem__(self, rows: slice | Tensor) -> "BlockMatrix":
        return BlockMatrix(self.quants[rows], self.scales[rows], None if self.mins is None else self.mins[rows])

    def columns(self, columns: range) -> "BlockMatrix":
        """Select input channels."""
        blocks = slice(columns.start // BLOCK_GROUP, columns.stop // BLOCK_GROUP)
        mins = None if self.mins is None else self.mins[:, blocks]
        return BlockMatrix(self.quants[:, blocks], self.scales[:, blocks], mins)

    def block_form(self) -> tuple[int, bool]:
        """Return bytes of integers in a block, whether it has minima. Raises ValueError if a scale is not finite."""
        for table in (self.scales, self.mins):
            if table is not None:
                check_finite(table)
        return self.form

    @property
    def form(self) -> tuple[int, bool]:
        """Return the `block_form` of a matrix that was checked."""
        return self.quants.shape[2], self.mins is not None

    def integers(self) -> Tensor:
        """Return q - zero, int8 [n_out, n_in/32, 32]."""
        return unpack(self.quants, self.zero)

    def dequantize(self) -> Tensor:
        """Decode to float32 [n_out, n_in], with the same bits as from the decoders of the gguf package."""
        values = self.integers() * self.scales.float()[:, :, None]
        return (values if self.mins is None else values.add_(self.mins.float()[:, :, None])).flatten(1)


def unpack(quants: Tensor, zero: int) -> Tensor:
    """Unpack int8 q - zero [..., 32] from some of `BlockMatrix.quants`."""
    if quants.dtype is torch.int8:
        return quants
    return torch.cat((quants & 15, quants >> 4), dim=-1).view(torch.int8).sub_(zero)


def check_finite(values: Tensor) -> Tensor:
    """Return the values. Raises ValueError if one is not finite."""
    if values.numel() and not torch.stack(values.aminmax()).isfinite().all():  # NaN is both least and greatest
        raise ValueError("a value is not finite")
    return values
