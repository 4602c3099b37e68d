"""Weights in 4-bit floats (NVFP4, MXFP4) as a file has them, which all compiled schemes keep.

A table makes a code a whole number, twice its value. Activations are bytes with a scale for each row and group of 32
channels. The sums within a group of 16 or 32 are exact integers, and each is multiplied by its own scale. The groups
are added in float32, in order. A row's result therefore depends on no other row.
"""

from collections.abc import Sequence

from model.checkpoint.stored import Stored
from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.groups import BLOCK_GROUP


def fits(parts: Sequence[Stored]) -> bool:
    """Return whether one layout holds these parts of a projection: of one format, in whole groups of 32 channels."""
    whole = all(part.is_whole for part in parts)
    return whole and len({part.group for part in parts}) == 1 and parts[0].shape[1] % BLOCK_GROUP == 0


def pack(kernels: Kernels, parts: Sequence[Stored]) -> PackedWeights:
    """Pack these as one matrix, one above the other, for the kernels. Raises ValueError as `check_fp4` does."""
    weights, first = packed.fp4(sum(map(len, parts)), parts[0].shape[1], parts[0].group), 0
    for part in parts:
        part.check_fp4()
        assert part.scales is not None, "4-bit floats have scales"
        kernels.pack_fp4(weights, first, part.values, part.scales, part.factor)
        first += len(part)
    return weights
