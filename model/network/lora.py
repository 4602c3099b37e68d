"""LoRA adapters (Hu 2021, arXiv 2106.09685): products of small matrices that are added to those of the network.

A product `y = W x` of the base becomes `y + B (A x)` for the rows of a step that use an adapter. The base's product is
computed as without adapters, so the rows of no adapter keep their bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.kernels import cuda as triton
from model.kernels.cpu import low_rank
from model.kernels.cpu.low_rank import PackedLowRank, PackedRows, PackedTargets
from model.kernels.cpu.records import TARGETS
from model.linear.base import RMSNorm
from model.linear.floats import RowAdapters
from model.machine.transfers import upload

if TYPE_CHECKING:
    from model.kernels.cuda.adapters import Grouped


class LowRankPart(NamedTuple):
    """Outputs `first..first+n-1` of a product get `b @ u[rank..rank+r-1]`: b [n, r], with the adapter's scale in it."""

    first: int
    rank: int
    b: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """An adapter's part of one product: `u = a x`, then the parts of B. `a` is [sum of their ranks, n_in].

    Worked example: an adapter for q (rank 8) and v (rank 4) of a layer with 64 rows of q and 32 of k has `a` [12, dim]
    and the parts (0, 0, [64, 8]) and (96, 8, [32, 4]). Parts are in order and do not overlap. All are contiguous.
    """

    a: Tensor
    parts: tuple[LowRankPart, ...]

    @property
    def n_bytes(self) -> int:
        return self.a.nbytes + sum(part.b.nbytes for part in self.parts)

    def pack(self) -> PackedLowRank:
        """Pack it for the compiled kernels."""
        return low_rank.pack(self.a, self.parts)


Product = LowRank | PackedLowRank
"""The low-rank part of one product. It is packed for projections that the compiled kernels compute."""


@dataclass(frozen=True, eq=False)
class Lora:
    """The matrices of an adapter, in one dtype and on one device: for each layer by target, and for the output head."""

    layers: tuple[Mapping[str, Product], ...]
    head: Product | None = None

    def pack(self) -> "Lora":
        """Pack it for a network whose projections the compiled kernels compute."""
        ordered = [
            (number, target) for number, layer in enumerate(self.layers) for target in TARGETS if target in layer
        ]
        products = [self.layers[number][target] for number, target in ordered]
        found = low_rank.adjacent([_packed(one) for one in (*products, *([self.head] if self.head else []))])
        layers: list[dict[str, Product]] = [{} for _ in self.layers]
        for (number, target), product in zip(ordered, found, strict=False):
            layers[number][target] = product
        return Lora(tuple(layers), found[-1] if self.head else None)

    @cached_property
    def targets(self) -> PackedTargets:
        """Return a packed adapter for all projections of all layers, then for the head."""
        return _targets([*(layer.get(target) for layer in self.layers for target in TARGETS), self.head])

    @cached_property
    def entries(self) -> NDArray[np.int64]:
        """Return the entries for the GPU's kernels of all products, those of each layer by target, then the head's."""
        from model.kernels.cuda import adapters

        products = [layer.get(target) for layer in self.layers for target in TARGETS] + [self.head]
        plain = [one if isinstance(one, LowRank) else None for one in products]
        rows = [[0] * adapters.ENTRY if one is None else adapters.entry(one.a, one.parts) for one in plain]
        return np.array(rows, dtype=np.int64)

    @cached_property
    def n_bytes(self) -> int:
        products = [product for layer in self.layers for product in layer.values()]
        return sum(product.n_bytes for product in (*products, *([self.head] if self.head else [])))


def _packed(product: Product) -> PackedLowRank:
    return product.pack() if isinstance(product, LowRank) else product


def _targets(products: Sequence[Product | None]) -> PackedTargets:
    return PackedTargets([None if product is None else _packed(product) for product in products])


class PlainUses(NamedTuple):
    """Matrices for one product, and the rows [n] of a step that use them, for PyTorch."""

    pairs: Sequence[tuple[LowRank, Tensor]]

    def add(self, y: Tensor, x: Tensor, norm: RMSNorm | None) -> None:
        """See `RowAdapters`."""
        for product, rows in self.pairs:
            inputs = x.index_select(0, rows)
            shrunk = (inputs if norm is None else norm(inputs)) @ product.a.to(x.dtype).T  # [n, ranks]
            for first, rank, b in product.parts:
                change = shrunk.narrow(1, rank, b.shape[1]) @ b.to(x.dtype).T  # [n, outputs]
                y.narrow(1, first, len(b)).index_add_(0, rows, change.to(y.dtype))


class GroupedUses(NamedTuple):
    """The same for the GPU's kernels: product number `product` of `grouped`."""

    grouped: "Grouped"
    product: int

    def add(self, y: Tensor, x: Tensor, norm: RMSNorm | None) -> None:
        """See `RowAdapters`."""
        from model.kernels.cuda import adapters

        adapters.add(y, x if norm is None else norm(x), self.grouped, self.product)


Uses = RowAdapters | PackedRows
"""The adapters of the rows of a product. Compiled projections take them packed."""
LayerUses = Mapping[str, Uses]
"""Those of one layer, by target. A target that no adapter has is missing."""
NO_USES: LayerUses = {}


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """Which rows [T] of a step use which adapter; there is at least one.

    `rows[i]` [n] int64 are those of `adapters[i]`, in order. `grouped` is the same for the GPU's kernels, where they
    serve. Worked example: slices of 2, 1 and 3 tokens whose second has no adapter and whose others share one: rows
    (0, 1, 3, 4, 5).
    """

    adapters: tuple[Lora, ...]
    rows: tuple[Tensor, ...]
    grouped: "Grouped | None" = None

    @classmethod
    def of(
        cls, adapters: Sequence[Lora | None], lengths: Sequence[int], device: torch.device, *, by_torch: bool = False
    ) -> "StepAdapters | None":
        """Make the step whose slice i has `lengths[i]` rows and uses `adapters[i]`; None if no row uses an adapter.

        With `by_torch` no kernels of a GPU serve.
        """
        distinct = tuple(dict.fromkeys(one for one, n in zip(adapters, lengths, strict=True) if one is not None and n))
        if not distinct:
            return None
        index: dict[Lora | None, int] = {one: i for i, one in enumerate(distinct)}
        owners = np.repeat([index.get(one, -1) for one in adapters], lengths)
        found = [np.flatnonzero(owners == i) for i in range(len(distinct))]
        rows = upload(found, device)
        grouped = triton.serves(rows[0]) and not by_torch
        return cls(distinct, tuple(rows), _group(distinct, found, device) if grouped else None)

    def layer(self, number: int) -> LayerUses:
        if self.grouped is not None:
            first = number * len(TARGETS)
            return {target: GroupedUses(self.grouped, first + i) for i, target in enumerate(TARGETS)}
        return {
            target: uses
            for target in TARGETS
            if (uses := self._uses([one.layers[number].get(target) for one in self.adapters])) is not None
        }

    @property
    def head(self) -> Uses | None:
        if self.grouped is not None:
            return GroupedUses(self.grouped, len(self.grouped.table) - 1)
        return self._uses([one.head for one in self.adapters])

    def _uses(self, products: Sequence[Product | None]) -> Uses | None:
        pairs = [(one, rows) for one, rows in zip(products, self.rows, strict=True) if one is not None]
        if not pairs:
            return None
        plain = [(one, rows) for one, rows in pairs if isinstance(one, LowRank)]
        if plain:
            return PlainUses(plain)
        return PackedRows([(_targets([one]), rows) for one, rows in pairs])


def _group(adapters: Sequence[Lora], rows: Sequence[NDArray[np.int64]], device: torch.device) -> "Grouped":
    from model.kernels.cuda.adapters import group

    return group(rows, np.stack([one.entries for one in adapters], axis=1), device)
