"""The parts of a block that all schemes share: the norm, the gate, and the interface of projections."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from model.kernels import cuda as triton
from model.kernels.cpu.packed import PackedWeights
from model.linear.schemes import Scheme

TINY = 1e-30
"""Rows and groups with no greater magnitude count as zeros."""


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps)` in float32, cast back, then scaled (Zhang 2019, arXiv 1910.07467).

    Worked example, unit scale: [3, 4] has mean square 12.5 -> [0.8485, 1.1314].
    """

    by_torch = False
    """Whether PyTorch computes it on a GPU too, because the kernel failed the self-test. Loading sets it."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        if triton.serves(x) and not self.by_torch:
            from model.kernels.cuda.norm import rms_norm as kernel

            return kernel(x, self.weight, self.eps)
        # rms_norm accumulates in float32 and casts back; the scale comes after the cast. [T, dim] -> [T, dim]
        return rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `silu(w1 x) * w3 x`. Worked example: silu(3.5) * 4.5 = 3.39741 * 4.5 = 15.28833."""
    return silu(gate).mul_(up)


class Projection(nn.Module, ABC):
    """A map [T, n_in] -> [T, n_out] without bias.

    The call includes the norm before it and the residual after it, because a scheme may compute all in one pass:
    `w2(w13.gated(x, norm), onto=x)` is `x + w2(silu(w1 norm(x)) * w3 norm(x))`. `packed` holds the weights for the
    compiled kernels, None where they do not serve.
    Raises OptionError for a number of input channels that the scheme cannot store.
    """

    scheme: Scheme
    packed: PackedWeights | None = None

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.scheme.check_width(n_in)
        self.n_in, self.n_out = n_in, n_out

    @abstractmethod
    def forward(self, x: Any, norm: RMSNorm | None = None, onto: Tensor | None = None, adapters: Any = None) -> Tensor:
        """Compute W norm(x), [T, n_out]; with `onto`, add it to that tensor in place and return the sum.

        `adapters` are those of the rows, as `StepAdapters` gives them: they add B A norm(x) to the result.
        """

    def gated(self, x: Tensor, norm: RMSNorm | None = None, adapters: Any = None) -> Any:
        """Compute swiglu(G norm(x), U norm(x)), [T, n_out/2], for the next projection. W is G above U."""
        return self.gate(self(x, norm, adapters=adapters))

    @abstractmethod
    def gate(self, gate_up: Tensor) -> Any:
        """Compute swiglu of gate and up side by side, [T, n_out] -> [T, n_out/2], for the next projection."""
