"""A GPU's kernels in a network: row counts on both sides of each change, and what PyTorch computes instead."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from model.kernels.cuda.layouts import FEW_ROWS
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.network.moe import MoE

OWNERS: Mapping[str, type[RMSNorm | Floats | MoE]] = {"norms": RMSNorm, "products": Floats, "experts": MoE}
"""The parts of a network by the kind of their kernels."""


class Kind(NamedTuple):
    """Products alike: their layout, whether their tile is `fixed`, and of how many experts a row uses how many."""

    layout: str
    fixed: bool
    n_experts: int = 1
    n_used: int = 1


def row_counts(model: nn.Module, most: int) -> Sequence[int]:
    """Numbers of rows up to `most`, in order: 1, `most`, and the last before and the first after each change."""
    kinds = {kind for part in model.modules() if (kind := _kind(part)) is not None}
    found = {1, most}
    for kind in kinds:
        choices = [_kernel(kind, n_rows) for n_rows in range(1, most + 1)]
        changes = [n for n in range(1, most) if choices[n - 1] != choices[n]]
        found |= {n_rows for n in changes for n_rows in (n, n + 1)}
    return sorted(found)


def _kind(part: nn.Module) -> Kind | None:
    """The kind of a projection or of a layer's experts; None if no kernel of a GPU computes it."""
    if isinstance(part, MoE) and part.stacked is not None:
        return Kind(part.stacked[0].layout, bool(part.gate.fixed), part.n_experts, part.n_used)
    if isinstance(part, Floats) and part.weights is not None and part.in_triton(part.weights.values):
        return Kind(part.weights.layout, part.fixed)
    return None


def _kernel(kind: Kind, n_rows: int) -> object:
    """What computes `n_rows` rows: a tile, or None for PyTorch."""
    from model.kernels.cuda.product import tile_of

    if kind.n_experts == 1 and not kind.fixed and n_rows > FEW_ROWS[kind.layout]:
        return None
    return tile_of(kind.layout, -(-n_rows * kind.n_used // kind.n_experts), fixed=kind.fixed)


def leave_to_torch(model: nn.Module, kinds: Collection[str]) -> None:
    """Let PyTorch compute what these kinds of kernels would, from now on."""
    owners = tuple(OWNERS[kind] for kind in kinds if kind in OWNERS)
    for part in model.modules():
        if isinstance(part, owners):
            part.by_torch = True
