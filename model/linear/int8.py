"""int8 weights with a scale for each output. Activations are whole numbers with a scale for each row.

The sums are exact integers. A row's result therefore depends on no other row. Channels far above the mean of a row have
two bytes (levels.h).
"""

import torch

from model.checkpoint.stored import Stored
from model.kernels.cpu.packed import int8, put_int8
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES


class Int8Linear(Compiled):
    """A projection with all weights in int8, whatever format the checkpoint has."""

    scheme = SCHEMES["int8"]

    def store(self, first: int, rows: Stored) -> None:
        if (own := rows.by_row(torch.int8)) is None:
            self._fill(int8, first, rows)
            return
        self.packed = self.packed or int8(self.n_out, self.n_in)
        put_int8(self.packed, first, *own)
