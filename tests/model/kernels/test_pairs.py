"""Products of bfloat16 in every variant: the operation of tdpbf16ps, as Intel's manual writes it, in numpy."""

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import bfloat16

ROWS = 1, 2, 7, 16, 33, 150


def fused(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """a * b + c, rounded once: the exponents here are so near that float64 holds the sum exactly."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def by_the_manual(x: Tensor, weight: Tensor) -> NDArray[np.float32]:
    """For each 32 channels a chain of even and a chain of odd ones; their sum is added to the total."""
    padding = (0, 0), (0, -x.shape[1] % 32)
    a, b = (np.pad(part.bfloat16().float().numpy(), padding) for part in (x, weight))
    total = np.zeros((len(a), len(b)), np.float32)
    for first in range(0, a.shape[1], 32):
        chains = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(first, first + 32):
            chains[k % 2] = fused(a[:, k, None], b[None, :, k], chains[k % 2])
        total = total + (chains[0] + chains[1])
    return total


def product(kernels: Kernels, weight: Tensor, x: Tensor, onto: Tensor | None = None) -> Tensor:
    packed = bfloat16(*weight.shape)
    kernels.quantize(packed, 0, weight)
    return kernels.linear(packed, x, onto=onto)


@pytest.mark.parametrize(("n_out", "n_in"), [(72, 200), (16, 64), (1, 3), (17, 65), (105, 650)])
def test_the_order_is_that_of_the_instruction(kernels: Kernels, n_out: int, n_in: int) -> None:
    """Also in tiles of any number of rows and blocks, whose results are stored or added."""
    source = torch.Generator().manual_seed(0)
    weight, x = torch.randn(n_out, n_in, generator=source), torch.randn(max(ROWS), n_in, generator=source)
    expected = torch.from_numpy(by_the_manual(x, weight))
    before = torch.randn(max(ROWS), n_out, generator=source)
    for n in ROWS:
        assert torch.equal(product(kernels, weight, x[-n:]), expected[-n:])
        assert torch.equal(product(kernels, weight, x[-n:], onto=before[-n:].clone()), before[-n:] + expected[-n:])


def test_numbers_below_the_normal_range_are_zeros(kernels: Kernels) -> None:
    """A factor, a product, a chain's sum, and a factor that rounds to a normal number in turn."""
    x, weight = torch.zeros(4, 64), torch.zeros(1, 64)
    weight[0, :3] = torch.tensor([2.0**100, 1.0, 1.0])
    x[0, 0] = 2.0**-130
    x[1, 0], weight[0, 5] = 0, 2.0**-27
    x[1, 5] = 2.0**-100
    x[2, 1], x[2, 2] = 2.0**-126, -1.5 * 2.0**-126
    x[3, 0] = 2.0**-126 * (1 - 2.0**-23)
    assert product(kernels, weight, x).flatten().tolist() == [0, 0, 0, 0]
    x[2, 2] = 1.5 * 2.0**-126
    assert product(kernels, weight, x)[2].item() == 2.5 * 2.0**-126


@pytest.mark.parametrize("pair", [*combinations(native.available(), 2)], ids="-".join)
@pytest.mark.parametrize(("n_out", "n_in"), [(72, 200), (333, 577), (48, 1536)])
def test_all_variants_have_the_same_bits(pair: tuple[str, str], n_out: int, n_in: int) -> None:
    torch.manual_seed(0)
    first, second = map(native.variant, pair)
    weight, x = torch.randn(n_out, n_in) * 3, torch.randn(max(ROWS), n_in) * torch.rand(max(ROWS), 1).exp()
    for n in ROWS:
        assert torch.equal(product(first, weight, x[:n]), product(second, weight, x[:n]))
