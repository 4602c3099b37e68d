"""Weights for the GPU's products: in the model's format, or narrower with tables of scales."""

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 448.0
"""The greatest value of float8_e4m3fn."""

FEW_ROWS: dict[str, int] = {"plain": 0, "fp8": 512, "int4": 512}
"""The greatest number of rows of x for which the product kernel is used, for each layout. PyTorch computes more: from
about 600 rows, dequantizing all weights first costs less than its faster product saves."""


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Weights [n_out, n_in] of one projection, or of several with more axes in front, in one of these layouts:

    "plain": `values` in the model's format, no tables. "fp8": `values` float8_e4m3fn, with a table of scales [n_out]
    float32. "int4": a weight is (q - zero) * scale, with q in `values` uint8 [n_out, n_in/2]. Its tables are scales in
    bfloat16 and zeros in uint8, both [n_in/64, n_out]. A group has 32 bytes: byte j has channel j in its lower half and
    channel j + 32 in its upper half.
    """

    layout: str
    values: Tensor
    tables: tuple[Tensor, ...] = ()

    @property
    def n_out(self) -> int:
        return self.values.shape[-2]

    @property
    def n_in(self) -> int:
        return self.values.shape[-1] * (2 if self.layout == "int4" else 1)

    @property
    def bytes(self) -> Tensor:
        """Return `values` for kernels, in uint8 where they are fp8: Triton has no e4m3 below compute capability 8.9."""
        return self.values.view(torch.uint8) if self.layout == "fp8" else self.values

    def __getitem__(self, index: int) -> "DeviceWeights":
        """Return the weights of one of several projections; the memory is shared."""
        return DeviceWeights(self.layout, self.values[index], tuple(table[index] for table in self.tables))
