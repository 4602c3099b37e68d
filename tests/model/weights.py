"""Random weights in any layout of the kernels."""

import torch

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights, bfloat16, fp4, superblocks
from tests.model import records
from tests.model.fp4 import GROUPS, random_fp4
from tests.model.records import random_blocks, random_superblocks


def random_weights(kernels: Kernels, kind: str, n_out: int, n_in: int) -> PackedWeights:
    """The same weights for all kernels after one seed; n_in becomes that of whole blocks."""
    if kind == "int8":
        weight = torch.randint(-127, 128, (n_out, n_in), dtype=torch.int8)
        return records.int8(weight, torch.rand(n_out))
    if kind == "bfloat16":
        packed = bfloat16(n_out, n_in)
        kernels.quantize(packed, 0, torch.randn(n_out, n_in))
        return packed
    if kind == "q4_k":
        packed = superblocks(n_out, -(-n_in // 256) * 256)
        kernels.pack_superblocks(packed, 0, random_superblocks(n_out, packed.n_in // 256, [3e-4, 6e-8, -0.5]))
        return packed
    if kind in GROUPS:
        packed = fp4(n_out, -(-n_in // 32) * 32, GROUPS[kind])
        kernels.pack_fp4(packed, 0, *random_fp4(kind, n_out, packed.n_in), 0.37)
        return packed
    return records.packed(kernels, *random_blocks(kind, n_out, n_in // 32))
