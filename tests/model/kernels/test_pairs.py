"""Products of bfloat16 in the order of AMX: against the operation of tdpbf16ps, as Intel's manual writes it, in numpy.

Here no processor has AMX. The variant `avx512bf16` computes the order that `amx` is compared with at start.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights, bfloat16

N_OUT, N_IN = 72, 200


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    if "avx512bf16" not in native.available():
        pytest.skip("this processor has no AVX-512 with bfloat16, which the order is written in")
    return native.variant("avx512bf16")


def fused(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """a * b + c, rounded once: the exponents here are so near that float64 holds the sum exactly."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def by_the_manual(x: Tensor, weight: Tensor) -> NDArray[np.float32]:
    """For each 32 channels a chain of even and a chain of odd ones; their sum is added to the total."""
    a, b = (np.pad(part.bfloat16().float().numpy(), ((0, 0), (0, -N_IN % 32))) for part in (x, weight))
    total = np.zeros((len(a), len(b)), np.float32)
    for first in range(0, a.shape[1], 32):
        chains = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(first, first + 32):
            chains[k % 2] = fused(a[:, k, None], b[None, :, k], chains[k % 2])
        total = total + (chains[0] + chains[1])
    return total


def product(kernels: Kernels, weight: Tensor, x: Tensor) -> Tensor:
    packed = bfloat16(*weight.shape, by_tiles=True)
    kernels.quantize(packed, 0, weight)
    return kernels.linear(packed, x)


def test_the_order_is_that_of_the_instruction(kernels: Kernels) -> None:
    source = torch.Generator().manual_seed(0)
    weight, x = torch.randn(N_OUT, N_IN, generator=source), torch.randn(35, N_IN, generator=source)
    found = product(kernels, weight, x)
    np.testing.assert_array_equal(found.numpy(), by_the_manual(x, weight))
    for n in (1, 2, 15, 16, 17):
        assert torch.equal(product(kernels, weight, x[-n:]), found[-n:])


def test_numbers_below_the_normal_range_are_zeros(kernels: Kernels) -> None:
    """A factor, a product and a chain's sum in turn: 2^-130, 2^-127 and 2^-126 - 1.5 * 2^-126."""
    x, weight = torch.zeros(3, 64), torch.zeros(1, 64)
    weight[0, :3] = torch.tensor([2.0**100, 1.0, 1.0])
    x[0, 0] = 2.0**-130
    x[1, 0], weight[0, 5] = 0, 2.0**-27
    x[1, 5] = 2.0**-100
    x[2, 0], x[2, 1], x[2, 2] = 0, 2.0**-126, -1.5 * 2.0**-126
    assert product(kernels, weight, x).flatten().tolist() == [0, 0, 0]
    x[2, 2] = 1.5 * 2.0**-126
    assert product(kernels, weight, x)[2].item() == 2.5 * 2.0**-126


class Variant:
    """Kernels that add in the order of AMX, or as vdpbf16ps does."""

    def __init__(self, kernels: Kernels, by_tiles: bool) -> None:
        self._kernels, self._by_tiles, self.quantize = kernels, by_tiles, kernels.quantize

    def linear(self, weights: PackedWeights, x: Tensor) -> Tensor:
        weights.record.by_tiles = self._by_tiles
        return self._kernels.linear(weights, x)


@pytest.mark.parametrize(("can", "agrees"), [(1, True), (1, False), (0, True)])
def test_amx_serves_if_it_can_and_gives_these_bits(
    kernels: Kernels, can: int, agrees: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variants = {"amx": Variant(kernels, agrees), "avx512bf16": Variant(kernels, True)}
    monkeypatch.setattr(native, "_library", lambda: SimpleNamespace(noria_multiplies_pairs=lambda: can))
    monkeypatch.setattr(native, "variant", variants.__getitem__)
    serves = native.multiplies_pairs_by_tiles.__wrapped__
    assert serves("amx") == (can and agrees)
    assert not serves("avx512bf16")
    assert len(caplog.records) == (not agrees)
