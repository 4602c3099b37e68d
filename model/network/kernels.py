"""A GPU's kernels in a network: row counts on both sides of each change, and what PyTorch computes instead."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from torch import nn

from model.kernels.cuda.layouts import FEW_ROWS
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.network.moe import MoE

OWNERS: Mapping[str, type[RMSNorm | Floats | MoE]] = {"norms": RMSNorm, "products": Floats, "experts": MoE}
"""The parts of a network by the kind of their kernels."""


KernelKind = tuple[str, bool, int, int]
"""Products alike: their layout, whether their tile is fixed, and of how many experts a row uses how many."""


def row_counts(model: nn.Module, most: int) -> Sequence[int]:
    """Return numbers of rows up to `most`, in order: 1, `most`, and the last before and the first after each change."""
    kinds = {kind for part in model.modules() if (kind := _kind(part)) is not None}
    found = {1, most}
    for kind in kinds:
        choices = [_kernel(kind, n_rows) for n_rows in range(1, most + 1)]
        found |= {n + more for n, (a, b) in enumerate(pairwise(choices), 1) if a != b for more in (0, 1)}
    return sorted(found)


def _kind(part: nn.Module) -> KernelKind | None:
    """Return the kind of a projection or of a layer's experts; None if no kernel of a GPU computes it."""
    if isinstance(part, MoE) and part.stacked is not None:
        return part.stacked[0].layout, bool(part.gate.fixed), part.n_experts, part.n_used
    if isinstance(part, Floats) and part.weights is not None and part.in_triton(part.weights.values):
        return part.weights.layout, part.fixed, 1, 1
    return None


def _kernel(kind: KernelKind, n_rows: int) -> object:
    """Return the tile that computes `n_rows` rows, or None for PyTorch."""
    from model.kernels.cuda.product import tile_of

    layout, fixed, n_experts, n_used = kind
    if n_experts == 1 and not fixed and n_rows > FEW_ROWS[layout]:
        return None
    return tile_of(layout, -(-n_rows * n_used // n_experts), fixed=fixed)


def leave_to_torch(model: nn.Module, kinds: Collection[str]) -> None:
    """Let PyTorch compute what these kinds of kernels would, from now on."""
    owners = tuple(OWNERS[kind] for kind in kinds if kind in OWNERS)
    for part in model.modules():
        if isinstance(part, owners):
            part.by_torch = True
