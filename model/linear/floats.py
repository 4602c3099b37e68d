"""Projections on activations in the model's format: with weights as they are, or narrower ones."""

from abc import abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from model.checkpoint.stored import Stored
from model.kernels import cuda as triton
from model.kernels.cuda.layouts import FEW_ROWS, DeviceWeights
from model.linear.base import Projection, RMSNorm, swiglu

PIECE = 2**25
"""Weights that are dequantized at once."""


class RowAdapters(Protocol):
    """The LoRA adapters of the rows of a step, for one projection."""

    def add(self, y: Tensor, x: Tensor, norm: RMSNorm | None) -> None:
        """Add B A norm(x) of each adapter to its rows of y [T, n_out], in place; x [T, n_in] is the product's input."""
        ...


class Floats(Projection):
    """A projection whose activations are in the model's format.

    On a GPU few rows run in the kernel that reads the weights in their own layout, more rows in PyTorch. With `fixed`
    all run in the kernel, in tiles of one shape: a row's bits then depend on no other row. The gate then is a kernel of
    its own, as it is in a step with adapters.
    """

    fixed = False
    by_torch = False
    """Whether PyTorch computes any number of rows, because a kernel failed the self-test. Loading sets it."""
    weights: DeviceWeights | None
    """The weights for the GPU's kernels; None before they are assigned."""

    @abstractmethod
    def allocate(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        """Allocate memory for the weights of `count` such projections, for a model in `dtype`."""

    def assign_weights(self, weights: DeviceWeights) -> None:
        """Use `weights`, memory of this projection from now on."""
        self.weights = weights

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """Compute W x by PyTorch."""

    def forward(
        self,
        x: Tensor,
        norm: RMSNorm | None = None,
        onto: Tensor | None = None,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        y = self.compute(x, norm, onto)
        if adapters is not None:
            adapters.add(y, x, norm)
        return y

    def compute(self, x: Tensor, norm: RMSNorm | None, onto: Tensor | None) -> Tensor:
        """Do as `forward` without adapters: the base's product does not depend on them."""
        x = x if norm is None else norm(x)
        if self._in_kernel(x):
            return self._run(x, onto=onto)
        y = self.product(x)
        return y if onto is None else onto.add_(y)

    def gated(self, x: Tensor, norm: RMSNorm | None = None, adapters: RowAdapters | None = None) -> Tensor:
        if adapters is not None:
            return self.gate(self(x, norm, adapters=adapters))
        x = x if norm is None else norm(x)
        return self._run(x, gated=True) if self._in_kernel(x) and not self.fixed else self.gate(self(x))

    def gate(self, gate_up: Tensor) -> Tensor:
        if self.in_triton(gate_up):
            from model.kernels.cuda.gate import swiglu as gate

            return gate(gate_up)
        return swiglu(*gate_up.chunk(2, dim=-1))

    def in_triton(self, x: Tensor) -> bool:
        """Return whether kernels compute with such tensors."""
        return triton.serves(x) and not self.by_torch

    def _in_kernel(self, x: Tensor) -> bool:
        return self.weights is not None and self.in_triton(x) and (self.fixed or len(x) <= self.few_rows(x))

    def few_rows(self, x: Tensor) -> int:
        """Return the greatest number of such rows that the kernel computes."""
        assert self.weights is not None
        return FEW_ROWS[self.weights.layout]

    def _run(self, x: Tensor, **around: Any) -> Tensor:
        from model.kernels.cuda.product import product

        assert self.weights is not None
        return product(x, self.weights, fixed=self.fixed, **around)


class WeightsOnly(Floats):
    """A projection with weights in a narrower layout of layouts.py, quantized on their device as they arrive."""

    weights = None

    @abstractmethod
    def put(self, weights: DeviceWeights, rows: slice, values: Tensor) -> None:
        """Quantize these rows of W, [n, n_in] float32, into `weights`."""

    @abstractmethod
    def dequantize(self, weights: DeviceWeights, rows: slice) -> Tensor:
        """Dequantize these rows of W, [n, n_in] float32, in PyTorch."""

    def take(self, first: int, rows: Stored) -> None:
        """Store rows `first..` [n, n_in] of the checkpoint, unchanged if they have one scale an output in this type.

        Raises ValueError for a value that is not finite.
        """
        weights = self.weights
        assert weights is not None, "no memory has been assigned"
        if (own := rows.by_row(weights.values.dtype)) is not None:
            place = slice(first, first + len(rows))
            weights.values[place], weights.tables[0][place] = own
            return
        for part in rows.parts():
            values = part.to(weights.values.device).float()
            if not values.isfinite().all():
                raise ValueError("a value is not finite")
            self.put(weights, slice(first, first + len(part)), values)
            first += len(part)

    def product(self, x: Tensor) -> Tensor:
        """Compute W x, with only one piece of W dequantized at a time."""
        y = x.new_empty(len(x), self.n_out)
        step = max(1, PIECE // self.n_in)
        for first in range(0, self.n_out, step):
            rows = slice(first, min(first + step, self.n_out))
            torch.mm(x, self._widened(rows, x).T, out=y[:, rows])
        return y

    def _widened(self, rows: slice, x: Tensor) -> Tensor:
        """Return these rows of W in the format of x."""
        assert self.weights is not None, "no weights have been loaded"
        if not self.in_triton(x):
            return self.dequantize(self.weights, rows).to(x.dtype)
        from model.kernels.cuda.convert import dequantize

        return dequantize(self.weights, rows.start, rows.stop, x.dtype)
