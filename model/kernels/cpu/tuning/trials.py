"""What is timed: products of some rows of each class with the model's own weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import torch

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import OUTPUTS, PackedWeights
from model.kernels.cpu.tuning.contest import Contest

DEFAULT = "default"
"""The name of what is compiled in."""
TIMED_ROWS = 1, 8, 32, 128
"""The number of rows that is timed for each class of records.ROW_CLASSES."""
MOST_BYTES, MOST_WORK = 2**20, 2**24
"""Bytes of weights and multiply-adds of a timed call, for each thread. Larger weights are timed in parts."""
MOST_PARTS = 64
"""Parts of the weights of one shape that are timed: enough that none is in a cache when its turn comes again."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A contest of tiles, and their names."""

    contest: Contest
    names: Sequence[str]

    @property
    def winner(self) -> str:
        """The name of the tile that serves."""
        return self.names[self.contest.winner]


def timing(kernels: Kernels, weights: Sequence[PackedWeights], row_class: int, threads: int) -> Timing:
    """A contest of the tiles for a class of rows of `weights`, which have one shape."""
    n_rows = TIMED_ROWS[row_class]
    known = kernels.tiles(weights[0].record.format)
    tiles = [0, *(i for i, name in enumerate(known, 1) if min(2, n_rows) <= rows_of(name) <= n_rows)]
    parts = parts_of(weights, n_rows, threads)
    later = row_class * len(parts) // len(TIMED_ROWS)  # no class finds in a cache what another one has just read
    turns = cycle(parts[later:] + parts[:later])
    x = torch.linspace(-1, 1, n_rows * weights[0].n_in).view(n_rows, -1)
    y = torch.zeros(n_rows, parts[0].n_out)

    def run(candidate: int) -> None:
        part = next(turns)
        part.record.tiles[row_class] = tiles[candidate]
        kernels.linear(part, x, onto=y)

    return Timing(Contest(len(tiles), run), [known[i - 1] if i else DEFAULT for i in tiles])


def rows_of(name: str) -> int:
    """The rows of a tile. Those with one row serve only a single row well."""
    return int(name.split("x")[0])


def parts_of(weights: Sequence[PackedWeights], n_rows: int, threads: int) -> list[PackedWeights]:
    """Parts of one size, of whole blocks of outputs, in an order in which neighbours are far apart."""
    first = weights[0]
    _, n_groups, record = first.packed.shape
    n_blocks = max(1, first.n_out // OUTPUTS)
    most = min(MOST_BYTES // (n_groups * record), MOST_WORK // (n_rows * first.n_in * OUTPUTS))
    size = min(n_blocks, threads * max(1, most))
    places = [(each, start) for start in range(0, n_blocks - size + 1, size) for each in weights]
    return [each.part(start, size) for each, start in places[:MOST_PARTS]]
