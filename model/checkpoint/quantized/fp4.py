"""A matrix of 4-bit floats with a scale for each group of channels: NVFP4 and MXFP4."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.checkpoint.block_matrix import check_finite
from model.kernels.groups import NVFP4_GROUP

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The magnitudes by the lower three bits of a code; the upper bit is the sign."""
LARGEST_NVFP4 = 6.0 * 448.0
"""The largest value before the factor."""
LARGEST_EXPONENT = 252
"""The greatest scale of MXFP4 with which 6 is still a float32."""


@dataclass(frozen=True, slots=True)
class Fp4Matrix:
    """A matrix [n_out, n_in] with w = value * scale * factor. The compiled kernels keep its bytes.

    `codes` is uint8 [n_out, n_in/2], the even channel in the lower half of a byte. `scales` is uint8
    [n_out, n_in/group]: e4m3 in groups of 16 (NVFP4), exponents of 2^(e - 127) in groups of 32 (MXFP4).
    """

    codes: Tensor
    scales: Tensor
    group: int
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix: (n_out, n_in)."""
        return len(self.codes), self.codes.shape[1] * 2

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | Tensor) -> "Fp4Matrix":
        """Select rows, in any order."""
        return replace(self, codes=self.codes[rows], scales=self.scales[rows])

    def columns(self, columns: range) -> "Fp4Matrix":
        """Select input channels, in whole groups."""
        first, stop = columns.start, columns.stop
        scales = self.scales[:, first // self.group : stop // self.group]
        return replace(self, codes=self.codes[:, first // 2 : stop // 2], scales=scales)

    def check(self) -> None:
        """Raise ValueError for a scale that is not finite, or negative, or with which a value is not finite."""
        is_nvfp4 = self.group == NVFP4_GROUP
        if self.scales.ge(127 if is_nvfp4 else LARGEST_EXPONENT + 1).any():
            raise ValueError("a scale is not finite, or negative, or too large")
        if is_nvfp4 and self.factor * LARGEST_NVFP4 > torch.finfo(torch.float32).max:
            raise ValueError(f"its global factor {self.factor:.3g} is too large")

    def dequantize(self) -> Tensor:
        """Decode to float32 [n_out, n_in]; only the product with `factor` rounds. Raises ValueError as `check` does."""
        self.check()
        codes = torch.stack((self.codes & 15, self.codes >> 4), dim=2).flatten(1)
        values = VALUES[(codes & 7).int()] * (1 - 2 * (codes >> 3).float())
        if self.group == NVFP4_GROUP:
            scales = self.scales.view(torch.float8_e4m3fn).float()
        else:
            scales = (self.scales.int() << 23).view(torch.float32)  # the exponent's bits; 2^-127 counts as 0
        return check_finite((values.unflatten(1, (-1, self.group)) * scales[:, :, None]).flatten(1).mul_(self.factor))
