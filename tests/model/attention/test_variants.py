"""Attention over the pages of a random step has the same bits in every variant, and in the one for AMX with its tile
instructions emulated in plain C."""

import random

import pytest
import torch
from torch import Tensor

from model.attention.paged import PagedAttention
from model.kernels.cpu import native
from model.kernels.cpu.check import SEPARATE
from model.kernels.cpu.functions import Kernels
from tests.model.attention.attending import attend, random_heads
from tests.model.attention.dense import dense

FUSED = [name for name in native.available() if name not in SEPARATE]
"""Variants that round a product and a sum once. The others compute 2^x with more roundings."""
DIMS = (2, 6, 16, 24, 32, 48, 64, 80, 96, 128, 160, 256, 512)
"""Head dims: multiples of 32, which AMX computes, and others."""


def random_case(pick: random.Random) -> tuple[tuple[int, int], int, int | None, list[int], list[int]]:
    """Heads, their width, a window, lengths of sequences and sizes of chunks."""
    group, n_kv_heads = pick.choice([1, 2, 3, 4, 5, 7, 8, 16, 21, 64]), pick.choice([1, 2, 3])
    window = pick.choice([None, None, pick.randrange(1, 40), pick.randrange(40, 300)])
    lengths = [pick.randrange(1, 300) for _ in range(pick.randrange(1, 4))]
    sizes = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 400]
    return (group * n_kv_heads, n_kv_heads), pick.choice(DIMS), window, lengths, pick.choices(sizes, k=3)


def rows_of(kernels: Kernels, case: tuple[tuple[int, int], int, int | None, list[int], list[int]], kind: str) -> Tensor:
    """All rows of the case. What nobody has written is NaN."""
    heads, width, window, lengths, chunks = case
    data = random_heads(lengths, heads, width)
    results = attend(PagedAttention(kernels), data, chunks, window, kv_dtype=getattr(torch, kind))
    return torch.cat([rows.flatten() for rows in results])


@pytest.mark.each
@pytest.mark.skipif(len(FUSED) < 2, reason="needs two variants that promise equal bits")
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "float32"])
@pytest.mark.parametrize("seed", range(12))
def test_variants_have_the_same_bits(seed: int, kind: str) -> None:
    case = random_case(random.Random(seed))
    first, *others = (rows_of(native.variant(name), case, kind) for name in FUSED)
    assert first.isfinite().all()
    for name, other in zip(FUSED[1:], others, strict=True):
        assert torch.equal(other, first), name


@pytest.mark.parametrize("seed", range(30))
def test_tiles_of_amx_have_these_bits(emulated: Kernels, seed: int) -> None:
    case = random_case(random.Random(100 + seed))
    assert torch.equal(rows_of(emulated, case, "bfloat16"), rows_of(native.variant(FUSED[0]), case, "bfloat16"))


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("growth", [3, 20])
def test_later_keys_weigh_more(kernels: Kernels, width: int, growth: int) -> None:
    """Scores grow with each block of keys, by less or more than the sums bear without a new reference."""
    ((q, k, v),) = random_heads([700], (2, 1), width)
    q[:], k[:] = 1, (torch.arange(700) // 128 * growth / width**0.5)[:, None, None]
    (found,) = attend(PagedAttention(kernels), [(q, k, v)], [300, 1], None, kv_dtype=torch.bfloat16)
    torch.testing.assert_close(found.double(), dense((q, k, v.bfloat16()), None), atol=5e-3, rtol=5e-3)
