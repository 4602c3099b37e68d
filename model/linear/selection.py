"""The projections of each scheme."""

from torch import nn

from model.linear.base import Projection
from model.linear.bfloat16 import BFloat16Linear
from model.linear.floats import Floats
from model.linear.fp8 import Fp8Linear
from model.linear.int4 import Int4Linear
from model.linear.int4_weights import Int4Weights
from model.linear.int8 import Int8Linear
from model.linear.none import Linear

PROJECTIONS: dict[str, type[Projection]] = {
    kind.scheme.name: kind for kind in (Linear, BFloat16Linear, Fp8Linear, Int8Linear, Int4Linear, Int4Weights)
}


def make_linear(n_in: int, n_out: int, *, scheme: str = "none") -> Projection:
    """Make a projection whose weights are still to be loaded."""
    return PROJECTIONS[scheme](n_in, n_out)


def fix_tiles(model: nn.Module) -> None:
    """Make all projections compute in fixed tiles on a GPU, so that a row's bits depend on no other row."""
    for module in model.modules():
        if isinstance(module, Floats):
            module.fixed = True
