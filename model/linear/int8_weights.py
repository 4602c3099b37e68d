"""int8 on a GPU: weights with a scale for each output, activations in the model's format."""

import torch
from torch import Tensor

from model.kernels.cuda.layouts import DeviceWeights
from model.linear.base import quantize_rows
from model.linear.floats import WeightsOnly
from model.linear.schemes import SCHEMES


class Int8Weights(WeightsOnly):
    """A projection with int8 weights. The scale is applied to the sum of the products."""

    scheme = SCHEMES["int8-weights"]

    def allocate(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        shape = (*count, self.n_out)
        values = torch.empty(*shape, self.n_in, dtype=torch.int8, device=device)
        return DeviceWeights("int8", values, (torch.empty(shape, dtype=torch.float32, device=device),))

    def put(self, weights: DeviceWeights, rows: slice, values: Tensor) -> None:
        weights.values[rows], scales = quantize_rows(values, self.n_in)
        weights.tables[0][rows] = scales[:, 0]

    def dequantize(self, weights: DeviceWeights, rows: slice) -> Tensor:
        return weights.values[rows].float() * weights.tables[0][rows, None]
