"""The projections of each scheme."""

import torch
from torch import nn

from model.errors import OptionError
from model.linear.base import Projection
from model.linear.bfloat16 import BFloat16Linear
from model.linear.floats import TILE, Floats
from model.linear.fp8 import Fp8Linear
from model.linear.int4 import Int4Linear
from model.linear.int4_weights import Int4Weights
from model.linear.int8 import Int8Linear
from model.linear.none import Linear

PROJECTIONS: dict[str, type[Projection]] = {
    kind.scheme.name: kind for kind in (Linear, BFloat16Linear, Fp8Linear, Int8Linear, Int4Linear, Int4Weights)
}


def make_linear(n_in: int, n_out: int, *, scheme: str = "none") -> Projection:
    """A projection whose weights are still to be loaded."""
    return PROJECTIONS[scheme](n_in, n_out)


def fix_tiles(model: nn.Module) -> None:
    """Make all projections compute in fixed tiles, so that a row's bits depend on no other row."""
    for module in model.modules():
        if isinstance(module, Floats):
            module.fixed = True


def check_tiles(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise OptionError if a row's bits depend on its place in the tile, in a product of PyTorch on this CPU."""
    for module in {(part.n_in, part.n_out): part for part in model.modules() if isinstance(part, Floats)}.values():
        rows = torch.linspace(-1, 1, module.n_in).to(dtype).expand(TILE, -1)
        y = module.multiply(rows)
        if not y.eq(y[0]).all():
            raise OptionError(
                f"--deterministic: PyTorch's products of {module.n_in} channels give equal rows different bits here; "
                "use --quantize int8"
            )
