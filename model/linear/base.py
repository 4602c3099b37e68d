"""What a projection is to the network, whatever its scheme."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu

from model.checkpoint.matrices import Matrix, parts
from model.kernels import cuda as triton
from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cuda.layouts import FEW_ROWS, DeviceWeights
from model.linear.norm import RMSNorm
from model.linear.schemes import Scheme

TINY = 1e-30
"""Rows and groups of lesser magnitudes count as zeros."""
MOST = torch.tensor(127.0)
"""A tensor, since PyTorch divides a number by a tensor in two rounded steps."""
TILE = 16
"""Rows of a fixed tile, by PyTorch."""
SERIAL = 2**15
"""Up to so many values PyTorch's threads do not cut a row, whose exponentials differ in their last bit at an edge."""
PIECE = 2**25
"""DeviceWeights that are dequantized at a time."""


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(w1 x) * w3 x`. Worked example: silu(3.5) * 4.5 = 3.39741 * 4.5 = 15.28833."""
    return silu(gate).mul_(up)


class Projection(nn.Module, ABC):
    """A map [T, n_in] -> [T, n_out] without bias.

    What stands beside it in a block is part of the call, so that a scheme may do all in one pass: the norm before, the
    gate before, the residual after. `packed` are the weights as the compiled kernels read them, where they do.
    Raises OptionError for a number of input channels that the scheme cannot store.
    """

    scheme: Scheme
    packed: PackedWeights | None = None

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.scheme.check_width(n_in)
        self.n_in, self.n_out = n_in, n_out

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

    def feed(self, x: Tensor, norm: RMSNorm | None, down: "Projection", onto: Tensor | None) -> Tensor:
        """`down.gated` of W norm(x), whose upper half is the gate."""
        return down.gated(self(x, norm), onto)


class Floats(Projection):
    """A projection whose activations are in the model's format.

    On a GPU few rows, or with `fixed` all, run in the kernel that reads the weights once in their own layout. With
    `fixed` a row's bits depend on no other row, because all are computed in tiles of one shape.
    """

    fixed = False

    @property
    @abstractmethod
    def weights(self) -> DeviceWeights | None:
        """As the GPU's kernels read them; None before they have come."""

    @abstractmethod
    def room(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        """Memory for the weights of `count` such projections, for a model in `dtype`."""

    @abstractmethod
    def settle(self, weights: DeviceWeights) -> None:
        """Keep the weights there."""

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """W x by PyTorch."""

    def multiply(self, x: Tensor) -> Tensor:
        if not self.fixed:
            return self.product(x)
        tiles = (pad(rows, (0, 0, 0, TILE - len(rows))) for rows in x.split(TILE))
        return torch.cat([self.product(tile) for tile in tiles])[: len(x)]

    def forward(self, x: Tensor, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        x = x if norm is None else norm(x)
        return self._run(x, onto=onto) if self._in_kernel(x) else super().forward(x, onto=onto)

    def gated(self, gate_up: Tensor, onto: Tensor | None = None) -> Tensor:
        if triton.serves(gate_up):
            from model.kernels.cuda.gate import swiglu as gate

            return self(gate(gate_up), onto=onto)
        if not self.fixed:
            return super().gated(gate_up, onto)
        few = gate_up.split(max(1, SERIAL // gate_up.shape[1]))
        return self(torch.cat([swiglu(*rows.chunk(2, dim=-1)) for rows in few]), onto=onto)

    def feed(self, x: Tensor, norm: RMSNorm | None, down: Projection, onto: Tensor | None) -> Tensor:
        if not self._in_kernel(x):
            return super().feed(x, norm, down, onto)
        return down(self._run(x if norm is None else norm(x), gated=True), onto=onto)

    def _in_kernel(self, x: Tensor) -> bool:
        weights = self.weights
        return weights is not None and triton.serves(x) and (self.fixed or len(x) <= FEW_ROWS[weights.layout])

    def _run(self, x: Tensor, **around: Any) -> Tensor:
        from model.kernels.cuda.product import product

        assert self.weights is not None
        return product(x, self.weights, fixed=self.fixed, **around)


class WeightsOnly(Floats):
    """DeviceWeights in a narrower layout of layouts.py, made when they arrive, on the device where they stay."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._weights: DeviceWeights | None = None

    @property
    def weights(self) -> DeviceWeights | None:
        return self._weights

    def settle(self, weights: DeviceWeights) -> None:
        self._weights = weights

    @abstractmethod
    def put(self, weights: DeviceWeights, rows: slice, values: Tensor) -> None:
        """Quantize these rows of W, [n, n_in] float32, into `weights`."""

    @abstractmethod
    def dequantize(self, weights: DeviceWeights, rows: slice) -> Tensor:
        """These rows of W, [n, n_in] float32, in PyTorch."""

    def take(self, first: int, rows: Matrix) -> None:
        """Rows `first..` [n, n_in] as the checkpoint has them. Raises ValueError for what is not finite."""
        weights = self.weights
        assert weights is not None, "there is no room yet"
        for part in parts(rows):
            values = part.to(weights.values.device).float()
            if not values.isfinite().all():
                raise ValueError("a value is not finite")
            self.put(weights, slice(first, first + len(part)), values)
            first += len(part)

    def product(self, x: Tensor) -> Tensor:
        """Dequantized piece by piece, so that only a piece is ever held."""
        y = x.new_empty(len(x), self.n_out)
        step = max(1, PIECE // self.n_in)
        for first in range(0, self.n_out, step):
            rows = slice(first, min(first + step, self.n_out))
            torch.mm(x, self._widened(rows, x).T, out=y[:, rows])
        return y

    def _widened(self, rows: slice, x: Tensor) -> Tensor:
        """These rows of W in the format of x."""
        assert self.weights is not None, "the weights have not come"
        if not triton.serves(x):
            return self.dequantize(self.weights, rows).to(x.dtype)
        from model.kernels.cuda.convert import dequantize

        return dequantize(self.weights, rows.start, rows.stop, x.dtype)


class Compiled(Projection):
    """DeviceWeights in a layout of the compiled kernels, on a CPU. Activations are float32 outside.

    Without compiled kernels `multiply_plainly` does the same arithmetic in PyTorch.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
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
