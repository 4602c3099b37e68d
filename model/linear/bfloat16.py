"""bfloat16 weights for the compiled kernels. Activations are float32; the product rounds them to bfloat16.

All variants of the kernels add in one order of the channels, and a row's result depends on no other row.
"""

from model.checkpoint.stored import Stored
from model.kernels.cpu.packed import bfloat16
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES


class BFloat16Linear(Compiled):
    """A projection with all weights in bfloat16, whatever format the checkpoint has."""

    scheme = SCHEMES["bfloat16"]

    def store(self, first: int, rows: Stored) -> None:
        self._fill(bfloat16, first, rows)
