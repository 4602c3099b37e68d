"""Projections in the compiled kernels of a CPU."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from model.checkpoint.stored import Stored
from model.kernels.cpu import native
from model.kernels.cpu.low_rank import PackedRows
from model.kernels.cpu.packed import PackedWeights
from model.linear import fp4
from model.linear.base import Projection, RMSNorm


@dataclass(frozen=True, slots=True)
class GateUp:
    """A `swiglu(gate, up)` [T, n] that is not computed yet: the next projection computes it while it reads `both`.

    `both` is [T, 2 n]: each row has its gate first, then its up.
    """

    both: Tensor


class Compiled(Projection):
    """A projection with weights in a layout of packed.py, on float32 activations.

    Weights in 4-bit floats stay as they are where all rows are such; a scheme says what becomes of others.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._kernels = native.needed()
        self._missing = n_out
        self._held: dict[int, Stored] = {}  # 4-bit floats by first row, until all are there

    def take(self, first: int, rows: Stored) -> None:
        """Store rows `first..` [n, n_in] of the checkpoint. The projection is ready when all rows are stored."""
        self._missing -= len(rows)
        if rows.layout == "fp4":
            self._held[first] = rows
        else:
            self.store(first, rows)
        if self._held and not self._missing:
            self._store_held()

    def _store_held(self) -> None:
        """Keep the rows in 4-bit floats if they are all, else store them as others."""
        held = {first: self._held.pop(first) for first in sorted(self._held)}
        parts = list(held.values())
        if sum(map(len, parts)) == self.n_out and fp4.fits(parts):
            self.packed = fp4.pack(self._kernels, parts)
            return
        for first, part in held.items():
            self.store(first, part)

    @abstractmethod
    def store(self, first: int, rows: Stored) -> None:
        """Do `take` in the layout of the scheme."""

    def _fill(self, allocate: Callable[[int, int], PackedWeights], first: int, rows: Stored) -> None:
        """Do `store` by the kernels. The first call allocates memory for n_out and n_in."""
        if self.packed is None:
            self.packed = allocate(self.n_out, self.n_in)
        for part in [rows.values] if rows.layout == "floats" else rows.parts():
            self._kernels.quantize(self.packed, first, part)
            first += len(part)

    def forward(
        self,
        x: Tensor | GateUp,
        norm: RMSNorm | None = None,
        onto: Tensor | None = None,
        adapters: PackedRows | None = None,
    ) -> Tensor:
        assert self.packed is not None, "no weights have been loaded"
        if isinstance(x, GateUp):
            return self._kernels.linear(self.packed, x.both, gated=True, onto=onto, adapters=adapters)
        scale, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return self._kernels.linear(self.packed, x, norm=scale, eps=eps, onto=onto, adapters=adapters)

    def gate(self, gate_up: Tensor) -> GateUp:
        return GateUp(gate_up)
