"""Projections in the compiled kernels of a CPU."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from model.checkpoint.matrices import Matrix, parts
from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedWeights
from model.linear.base import GateUp, Projection, RMSNorm


class Compiled(Projection):
    """A projection with weights in a layout of packed.py, on float32 activations.

    Without compiled kernels `multiply_plainly` does the same arithmetic in PyTorch.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._kernels = native.kernels()

    @abstractmethod
    def take(self, first: int, rows: Matrix) -> None:
        """Store rows `first..` [n, n_in] of the checkpoint. The projection is ready when all rows are stored."""

    @abstractmethod
    def multiply_plainly(self, x: Tensor) -> Tensor:
        """W x in PyTorch: [T, n_in] float32 -> [T, n_out]."""

    def _fill(self, allocate: Callable[[int, int], PackedWeights], first: int, rows: Matrix) -> None:
        """`take` by the kernels. The first call allocates memory for n_out and n_in."""
        assert self._kernels is not None
        if self.packed is None:
            self.packed = allocate(self.n_out, self.n_in)
        for part in [rows] if isinstance(rows, Tensor) else parts(rows):
            self._kernels.quantize(self.packed, first, part)
            first += len(part)

    def multiply(self, x: Tensor) -> Tensor:
        return self.multiply_plainly(x) if self._kernels is None else self._run(x)

    def forward(self, x: Tensor | GateUp, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        if isinstance(x, GateUp):
            return self._run(x.both, gated=True, onto=onto)
        if self._kernels is None:
            return super().forward(x, norm, onto)
        scale, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return self._run(x, norm=scale, eps=eps, onto=onto)

    def gate(self, gate_up: Tensor) -> Tensor | GateUp:
        return super().gate(gate_up) if self._kernels is None else GateUp(gate_up)

    def _run(self, x: Tensor, **around: Any) -> Tensor:
        assert self._kernels is not None
        assert self.packed is not None, "no weights have been loaded"
        return self._kernels.linear(self.packed, x, **around)
