"""Weights in the model's own format."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from model.kernels.cuda.layouts import DeviceWeights
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.linear.schemes import SCHEMES


class Linear(Floats):
    """`weight` [n_out, n_in], on the default device and dtype."""

    scheme = SCHEMES["none"]

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self.weight = nn.Parameter(torch.empty(n_out, n_in))

    @property
    def weights(self) -> DeviceWeights | None:  # type: ignore[override]
        return None if self.weight is None else DeviceWeights("plain", self.weight)

    def allocate(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        return DeviceWeights("plain", torch.empty(*count, *self.weight.shape, dtype=dtype, device=device))

    def assign_weights(self, weights: DeviceWeights) -> None:
        self.weight = nn.Parameter(weights.values, requires_grad=False)

    def product(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)

    def compute(self, x: Tensor, norm: RMSNorm | None, onto: Tensor | None) -> Tensor:
        if onto is None or not x.is_cuda or self._in_kernel(x):
            return super().compute(x, norm, onto)
        return onto.addmm_(x if norm is None else norm(x), self.weight.T)  # the product's own epilogue adds
