"""What a projection is to the network, whatever its scheme."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.functional import silu

from model.norm import RMSNorm


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(w1 x) * w3 x`. Worked example: silu(3.5) * 4.5 = 3.39741 * 4.5 = 15.28833."""
    return silu(gate).mul_(up)


class Projection(nn.Module, ABC):
    """A map [T, n_in] -> [T, n_out] without bias.

    What stands beside it in a block is part of the call, so that a scheme may do all in one pass: the norm before, the
    gate before, the residual after.
    """

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
    """A projection that keeps its weights in a form of its own."""

    @abstractmethod
    def take(self, first: int, rows: Tensor) -> None:
        """Rows `first..` [n, n_in] as the checkpoint has them; ready once all have come."""
