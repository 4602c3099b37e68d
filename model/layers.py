"""The small parts of a block: RMSNorm and the SwiGLU feed-forward."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from model.linear import make_linear


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps)` in float32, cast back, then scaled (Zhang 2019, arXiv 1910.07467).

    Worked example, unit scale: [3, 4] has mean square 12.5 -> [0.8485, 1.1314].
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        # rms_norm accumulates in float32 and casts back; the scale comes after the cast. [T, dim] -> [T, dim]
        return rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(w1 x) * w3 x`. Worked example: silu(3.5) * 4.5 = 3.39741 * 4.5 = 15.28833."""
    return silu(gate).mul_(up)


class FeedForward(nn.Module):
    """SwiGLU block `w2(silu(w1 x) * w3 x)`; w1 and w3 are one projection."""

    def __init__(self, dim: int, hidden_dim: int, scheme: str = "none") -> None:
        super().__init__()
        self.w13 = make_linear(dim, 2 * hidden_dim, scheme=scheme)
        self.w2 = make_linear(hidden_dim, dim, scheme=scheme)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)  # [T, dim] -> [T, hidden_dim] twice
        return self.w2(swiglu(gate, up))  # [T, dim]
