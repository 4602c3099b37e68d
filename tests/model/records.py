"""Weights in the records of linear.c, by permuting whole tensors: the expected results of pack.c, in PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cpu.packed import blocks as empty_blocks
from model.kernels.cpu.packed import int8 as empty_int8


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [n, k] -> int8 [n, k] in -127..127 and scales [n] float32: each row's greatest magnitude becomes 127."""
    weight = weight.float()
    largest = weight.abs().amax(dim=1)
    inverse = torch.where(largest > 1e-30, torch.tensor(127.0) / largest, 0.0)
    return (weight * inverse[:, None]).round_().to(torch.int8), torch.where(largest > 1e-30, largest / 127, 0.0)


def int8(weight: Tensor, scales: Tensor) -> PackedWeights:
    """weight [n_out, n_in] int8 in -127..127, scales [n_out] float32; padded with zeros."""
    made = empty_int8(*weight.shape)
    n_blocks, n_groups, _ = made.packed.shape
    whole = torch.zeros(n_blocks * 16, n_groups * 64, dtype=torch.int8)
    whole[: weight.shape[0], : weight.shape[1]] = weight
    records = whole.view(torch.uint8).bitwise_xor(128).view(n_blocks, 16, n_groups, 16, 4)
    made.packed.copy_(records.permute(0, 2, 3, 1, 4).flatten(2))
    assert made.scales is not None
    made.scales[: len(scales)] = scales
    return made


def bfloat16(weight: Tensor, *, neighbours: bool) -> Tensor:
    """weight [n_out, n_in] bfloat16; padded. A word has two neighbours, or channels 2 and 0, 3 and 1 of four."""
    n_blocks, n_groups = -(-weight.shape[0] // 16), -(-weight.shape[1] // 64)
    whole = torch.zeros(n_blocks * 16, n_groups * 64, dtype=torch.bfloat16)
    whole[: weight.shape[0], : weight.shape[1]] = weight
    if not neighbours:
        whole = whole.unflatten(1, (-1, 2, 2)).flip(2).mT.flatten(1)
    records = whole.view(n_blocks, 16, n_groups, 32, 2)
    return records.permute(0, 2, 3, 1, 4).flatten(2).contiguous().view(torch.uint8)


def blocks(quants: Tensor, scales: Tensor, mins: Tensor | None) -> Tensor:
    """quants [n_out, n_in/32, 32] int8 or [n_out, n_in/32, 16] uint8, scales and mins float16; n_out of whole 16s."""
    n_out, n_groups, _ = quants.shape
    if quants.dtype is torch.int8:
        quants = quants.clamp(min=-127).view(torch.uint8) ^ 128
    halves = [part.view(torch.uint8).unflatten(1, (n_groups, 2)) for part in (scales, mins) if part is not None]
    parts = []
    for part, width in ((quants, 4), *((half, 2) for half in halves)):
        rows = part.view(n_out // 16, 16, n_groups, -1, width)
        parts.append(rows.permute(0, 2, 3, 1, 4).flatten(2))
    return torch.cat(parts, dim=2)


def packed(kernels: Kernels, quants: Tensor, scales: Tensor, mins: Tensor | None) -> PackedWeights:
    """Weights that the kernels have packed in one piece."""
    n_out, n_groups, n_bytes = quants.shape
    made = empty_blocks(n_out, n_groups * 32, n_bytes, with_minima=mins is not None)
    kernels.pack(made, 0, quants, scales, mins)
    return made


KINDS = {"q8": (32, False), "q8_min": (32, True), "q4": (16, False), "q4_min": (16, True)}


def random_blocks(kind: str, n_out: int, n_groups: int) -> tuple[Tensor, Tensor, Tensor | None]:
    n_bytes, has_minima = KINDS[kind]
    generator = torch.Generator().manual_seed(n_out)
    shape = (n_out, n_groups, n_bytes)
    quants = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
    scales, mins = ((torch.randn(n_out, n_groups, generator=generator) / 50).half() for _ in range(2))
    scales[0, 0] = 3e-7  # a subnormal of float16
    return quants if n_bytes == 32 else quants.view(torch.uint8), scales, mins if has_minima else None


def random_superblocks(n_out: int, n_blocks: int, factors: Sequence[float]) -> Tensor:
    """Rows of Q4_K as in a file [n_out, n_blocks * 144]: any bytes, and factors of these sizes."""
    rows = torch.randint(0, 256, (n_out, n_blocks, 144), dtype=torch.uint8)
    sizes = torch.tensor(factors)[torch.randint(len(factors), (n_out, n_blocks, 2))]
    rows[..., :4] = (sizes * (0.5 + torch.rand(sizes.shape))).half().view(torch.uint8)
    return rows.flatten(1)
