"""Weights as they are."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from model.quant.base import Projection


class Linear(Projection):
    """`weight` [n_out, n_in], on the default device and dtype."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))

    def multiply(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)
