"""Weights as they are; on a CPU in bfloat16, laid out by oneDNN for its products."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from model.quant.base import Projection

ROWS = 32
"""Rows of x that oneDNN is asked to choose its layout for; it serves any number."""


class Linear(Projection):
    """`weight` [n_out, n_in], on the default device and dtype; `pack` may put oneDNN's form of it in its place."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.reordered: Tensor | None = None

    def pack(self) -> None:
        """Have oneDNN lay the weights out once; `linear` would have it do so in every product."""
        if packable(self.weight):
            self.reordered = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)
            self.register_parameter("weight", None)

    def multiply(self, x: Tensor) -> Tensor:
        if self.reordered is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self.reordered, None, "none", [], "")
        return linear(x, self.weight)


def packable(weight: Tensor) -> bool:
    """Whether oneDNN multiplies this weight in a layout of its own."""
    here = weight.device.type == "cpu" and weight.dtype is torch.bfloat16
    return here and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
