"""Weights as they are; on a CPU in bfloat16, laid out by oneDNN for its products."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from model.kernels.forms import Weights
from model.norm import RMSNorm
from model.quant.base import Floats

ROWS = 32
"""Rows of x that oneDNN is asked to choose its layout for; it serves any number."""


class Linear(Floats):
    """`weight` [n_out, n_in], on the default device and dtype; `pack` may put oneDNN's form of it in its place."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.reordered: Tensor | None = None

    @property
    def weights(self) -> Weights | None:
        return None if self.weight is None else Weights("plain", self.weight)

    def room(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weights:
        return Weights("plain", torch.empty(*count, *self.weight.shape, dtype=dtype, device=device))

    def settle(self, weights: Weights) -> None:
        self.weight = nn.Parameter(weights.values, requires_grad=False)

    def pack(self) -> None:
        """Have oneDNN lay the weights out once; `linear` would have it do so in every product."""
        if packable(self.weight):
            self.reordered = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)
            self.register_parameter("weight", None)

    def product(self, x: Tensor) -> Tensor:
        if self.reordered is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self.reordered, None, "none", [], "")
        return linear(x, self.weight)

    def forward(self, x: Tensor, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        if onto is None or not x.is_cuda or self._in_kernel(x):
            return super().forward(x, norm, onto)
        return onto.addmm_(x if norm is None else norm(x), self.weight.T)  # the product's own epilogue adds


def packable(weight: Tensor) -> bool:
    """Whether oneDNN multiplies this weight in a layout of its own."""
    here = weight.device.type == "cpu" and weight.dtype is torch.bfloat16
    return here and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
