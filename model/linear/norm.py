"""RMSNorm."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from model.kernels import cuda as triton


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps)` in float32, cast back, then scaled (Zhang 2019, arXiv 1910.07467).

    Worked example, unit scale: [3, 4] has mean square 12.5 -> [0.8485, 1.1314].
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        if triton.serves(x):
            from model.kernels.cuda.norm import rms_norm as kernel

            return kernel(x, self.weight, self.eps)
        # rms_norm accumulates in float32 and casts back; the scale comes after the cast. [T, dim] -> [T, dim]
        return rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight
