"""fp8 (e4m3) weights with a scale for each output. For many rows on a GPU, activations are fp8 too, with a scale a row.

For few rows most of the time goes into reading the weights, and activations stay in the model's format.
"""

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from model.kernels import cuda as triton
from model.kernels.cuda.layouts import LARGEST, DeviceWeights
from model.linear.base import TINY
from model.linear.floats import WeightsOnly
from model.linear.schemes import SCHEMES

E4M3 = torch.float8_e4m3fn
OLDEST = (8, 9)
"""The least compute capability whose tensor cores multiply fp8. Others dequantize the weights for many rows."""
ROWS = 64
"""The greatest number of rows whose activations are not rounded, where fp8 is multiplied."""


class Fp8Linear(WeightsOnly):
    """A projection with fp8 weights. Without a GPU PyTorch does the same arithmetic slowly, to measure quality."""

    scheme = SCHEMES["fp8"]

    def allocate(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        shape = (*count, self.n_out)
        values = torch.empty(*shape, self.n_in, dtype=E4M3, device=device)
        return DeviceWeights("fp8", values, (torch.empty(shape, dtype=torch.float32, device=device),))

    def put(self, weights: DeviceWeights, rows: slice, values: Tensor) -> None:
        weights.values[rows], scales = quantize(values)
        weights.tables[0][rows] = scales[:, 0]

    def dequantize(self, weights: DeviceWeights, rows: slice) -> Tensor:
        return weights.values[rows].float() * weights.tables[0][rows, None]

    def product(self, x: Tensor) -> Tensor:
        if self.fixed or self.by_torch or len(x) <= ROWS:
            return super().product(x)
        if triton.serves(x):
            return self.scaled(x) if self._multiplies(x) else super().product(x)
        values, scales = quantize(x.float())
        return super().product((values.float() * scales).to(x.dtype))

    def few_rows(self, x: Tensor) -> int:
        return ROWS if self._multiplies(x) else super().few_rows(x)

    def _multiplies(self, x: Tensor) -> bool:
        """Return whether PyTorch multiplies this shape and format in fp8."""
        return self.n_in % 16 == 0 and self.n_out % 16 == 0 and multiplies(x)

    def scaled(self, x: Tensor) -> Tensor:
        """Compute W x with x rounded to fp8, both factors as they are in the tensor cores."""
        from model.kernels.cuda.convert import to_fp8

        assert self.weights is not None
        values, scales = to_fp8(x)
        return scaled_mm(
            *(values, self.weights.values.T),
            *(scales, ScalingType.RowWise),
            *(self.weights.tables[0][None], ScalingType.RowWise),
            output_dtype=x.dtype,
            use_fast_accum=True,
        )


def multiplies(x: Tensor) -> bool:
    """Return whether the tensor cores multiply fp8 where x is, for a model in its format."""
    return x.dtype is torch.bfloat16 and x.is_cuda and torch.cuda.get_device_capability(x.device) >= OLDEST


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows [n, k] float32 -> e4m3 [n, k] and scales [n, 1]: the greatest magnitude of a row becomes 448."""
    scales = rows.abs().amax(dim=1, keepdim=True).clamp_(min=TINY) / LARGEST
    return (rows / scales).to(E4M3), scales
