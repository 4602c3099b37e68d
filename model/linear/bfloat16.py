"""bfloat16 weights for the compiled kernels. Activations are float32; the product rounds them to bfloat16.

Each output is one chain of additions in float32, in one order of the channels: a row's result depends on no other row.
Without kernels oneDNN multiplies, in an order of its own.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from model.checkpoint.block_matrix import check_finite
from model.checkpoint.matrices import Matrix, parts
from model.kernels.cpu import native
from model.kernels.cpu.packed import bfloat16
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES

ROWS = 32
"""The number of rows of x for which oneDNN chooses its layout. The layout serves any number."""


class BFloat16Linear(Compiled):
    """A projection with all weights in bfloat16, whatever format the checkpoint has."""

    scheme = SCHEMES["bfloat16"]

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._weight: Tensor | None = None  # without kernels: [n_out, n_in], in oneDNN's layout once all rows are there
        self._missing = n_out

    def take(self, first: int, rows: Matrix) -> None:
        if self._kernels is not None:
            by_tiles = native.multiplies_pairs_by_tiles(self._kernels.variant)
            self._fill(partial(bfloat16, by_tiles=by_tiles), first, rows)
            return
        if self._weight is None:
            self._weight = torch.empty(self.n_out, self.n_in, dtype=torch.bfloat16)
        for part in parts(rows):
            check_finite(self._weight.narrow(0, first, len(part)).copy_(part))
            first += len(part)
        self._missing -= len(rows)
        if not self._missing and has_onednn():
            # Private: torch.nn.functional.linear reorders the weight in each call.
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, ROWS)

    def multiply_plainly(self, x: Tensor) -> Tensor:
        """The result stays in bfloat16."""
        assert self._weight is not None, "no weights have been loaded"
        if has_onednn():
            # Private: no public operator takes a reordered weight.
            return torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self._weight, None, "none", [], "")
        return linear(x.bfloat16(), self._weight)


def has_onednn() -> bool:
    """Whether oneDNN multiplies bfloat16 in a layout of its own."""
    # Private: torch.backends.mkldnn says nothing of bfloat16.
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
