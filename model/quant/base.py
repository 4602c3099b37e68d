"""What a projection is to the network, whatever its scheme."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from model.blocks import Matrix, parts
from model.kernels import native
from model.kernels.packed import PackedWeights
from model.norm import RMSNorm

TINY = 1e-30
"""Rows and groups of lesser magnitudes count as zeros."""
MOST = torch.tensor(127.0)
"""A tensor, since PyTorch divides a number by a tensor in two rounded steps."""


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(w1 x) * w3 x`. Worked example: silu(3.5) * 4.5 = 3.39741 * 4.5 = 15.28833."""
    return silu(gate).mul_(up)


class Projection(nn.Module, ABC):
    """A map [T, n_in] -> [T, n_out] without bias.

    What stands beside it in a block is part of the call, so that a scheme may do all in one pass: the norm before, the
    gate before, the residual after. `packed` are the weights as the compiled kernels read them, where they do.
    """

    packed: PackedWeights | None = None

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """W x: [T, n_in] -> a new [T, n_out]."""

    def forward(self, x: Tensor, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        """W norm(x) [T, n_out]; with `onto`, that tensor with the result added in place."""
        y = self.multiply(x if norm is None else norm(x))
        return y if onto is None else onto.add_(y)

    def gated(self, gate_up: Tensor, onto: Tensor | None = None) -> Tensor:
        """W swiglu(gate, up) for both side by side, [T, 2 n_in]; `onto` as in `forward`."""
        return self(swiglu(*gate_up.chunk(2, dim=-1)), onto=onto)


class Quantized(Projection):
    """A projection that keeps its weights in a form of its own. Activations are float32 outside.

    Without compiled kernels `multiply_plainly` does the same arithmetic in PyTorch.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.n_in, self.n_out = n_in, n_out
        self._kernels = native.kernels()

    @abstractmethod
    def take(self, first: int, rows: Matrix) -> None:
        """Rows `first..` [n, n_in] as the checkpoint has them; ready once all have come."""

    @abstractmethod
    def multiply_plainly(self, x: Tensor) -> Tensor:
        """W x in PyTorch: [T, n_in] float32 -> [T, n_out]."""

    def _fill(self, room: Callable[[int, int], PackedWeights], first: int, rows: Matrix) -> None:
        """`take` with kernels, into `room` for n_out, n_in."""
        assert self._kernels is not None
        if self.packed is None:
            self.packed = room(self.n_out, self.n_in)
        for part in [rows] if isinstance(rows, Tensor) else parts(rows):
            self._kernels.quantize(self.packed, first, part)
            first += len(part)

    def multiply(self, x: Tensor) -> Tensor:
        return self.multiply_plainly(x) if self._kernels is None else self._run(x)

    def forward(self, x: Tensor, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        if self._kernels is None:
            return super().forward(x, norm, onto)
        scale, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return self._run(x, norm=scale, eps=eps, onto=onto)

    def gated(self, gate_up: Tensor, onto: Tensor | None = None) -> Tensor:
        if self._kernels is None:
            return super().gated(gate_up, onto)
        return self._run(gate_up, gated=True, onto=onto)

    def _run(self, x: Tensor, **around: Any) -> Tensor:
        assert self._kernels is not None
        assert self.packed is not None, "the weights have not come"
        return self._kernels.linear(self.packed, x, **around)


def quantize_rows(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x [T, k] float32, k a multiple of `group` -> int8 [T, k] and scales [T, k/group], as the kernels do it."""
    groups = x.unflatten(1, (-1, group))
    most = groups.abs().amax(dim=2)  # [T, k/group]
    inverse = torch.where(most <= TINY, 0.0, MOST / most)
    scales = torch.where(most <= TINY, 0.0, most / 127)  # not finite where a value is not: so are the group's products
    return (groups * inverse[:, :, None]).round_().flatten(1).to(torch.int8), scales
