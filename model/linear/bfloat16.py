"""bfloat16 weights for the compiled kernels. Activations are float32; the product rounds them to bfloat16.

Each output is one chain of additions in float32, in one order of the channels: a row's result depends on no other row.
"""

from functools import partial

from model.checkpoint.matrices import Matrix
from model.kernels.cpu import native
from model.kernels.cpu.packed import bfloat16
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES


class BFloat16Linear(Compiled):
    """A projection with all weights in bfloat16, whatever format the checkpoint has."""

    scheme = SCHEMES["bfloat16"]

    def take(self, first: int, rows: Matrix) -> None:
        by_tiles = native.multiplies_pairs_by_tiles(self._kernels.variant)
        self._fill(partial(bfloat16, by_tiles=by_tiles), first, rows)
