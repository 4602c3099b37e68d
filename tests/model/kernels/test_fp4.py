"""Products with weights in NVFP4 and MXFP4, every variant of the kernels, against their definitions in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from model.kernels.cpu import native, packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedExperts, PackedWeights
from tests.model.fp4 import GROUPS, meant, random_fp4

every_kind = pytest.mark.parametrize("kind", GROUPS)


def made(kernels: Kernels, kind: str, codes: Tensor, scales: Tensor, factor: float = 1.0) -> PackedWeights:
    weights = packed.fp4(len(codes), codes.shape[1] * 2, GROUPS[kind])
    kernels.pack_fp4(weights, 0, codes, scales, factor)
    return weights


def rounded(x: Tensor) -> np.ndarray:
    """Rows rounded to 127 steps of each group of 32 channels, in float64."""
    groups = x.numpy().reshape(len(x), -1, 32)
    greatest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), greatest, out=np.zeros_like(greatest), where=greatest > 0)
    return (np.rint(groups * inverse) * (greatest.astype(np.float64) / 127)).reshape(len(x), -1)


@every_kind
@pytest.mark.parametrize(("n_out", "n_in", "n_rows"), [(16, 32, 1), (50, 96, 5), (208, 576, 13), (64, 1536, 1)])
@pytest.mark.parametrize("factor", [1.0, 1 / 2688])
def test_products_are_those_of_the_definition(
    kernels: Kernels, kind: str, n_out: int, n_in: int, n_rows: int, factor: float
) -> None:
    codes, scales = random_fp4(kind, n_out, n_in)
    x = torch.randn(n_rows, n_in)
    x[0, :32] = 0
    found = kernels.linear(made(kernels, kind, codes, scales, factor), x).numpy()
    expected = rounded(x) @ meant(codes, scales, factor).T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@every_kind
def test_every_code_and_scale_is_exact(kernels: Kernels, kind: str) -> None:
    """One channel of a row is 127 and all others are 0: the product is the weight."""
    sizes = torch.arange(127) if kind == "nvfp4" else torch.arange(3, 240)
    scales = sizes.to(torch.uint8)[:, None].repeat(1, 32 // GROUPS[kind])
    codes = torch.tensor([i | (15 - i) << 4 for i in range(16)], dtype=torch.uint8).repeat(len(scales), 1)
    found = kernels.linear(made(kernels, kind, codes, scales), torch.eye(32) * 127) / 127
    assert np.array_equal(found.numpy().T, meant(codes, scales).astype(np.float32))


@every_kind
def test_a_row_has_the_same_bits_beside_any_others(kernels: Kernels, kind: str) -> None:
    weights = made(kernels, kind, *random_fp4(kind, 88, 320), 0.37)
    x, before = torch.randn(150, 320), torch.randn(150, 88)
    whole = kernels.linear(weights, x)
    for first, stop in ((0, 1), (3, 10), (100, 117), (149, 150), (10, 140)):
        assert torch.equal(kernels.linear(weights, x[first:stop]), whole[first:stop])
    assert torch.equal(kernels.linear(weights, x, onto=before.clone()), before + whole)


@every_kind
@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_do_not_change_bits(kernels: Kernels, kind: str, n_threads: int) -> None:
    weights, x = made(kernels, kind, *random_fp4(kind, 1040, 192)), torch.randn(70, 192)
    expected = kernels.linear(weights, x)
    before = native.use_threads(2)
    try:
        assert native.use_threads(n_threads) == n_threads
        assert all(torch.equal(kernels.linear(weights, x), expected) for _ in range(20))
    finally:
        native.use_threads(before)


@every_kind
def test_parts_of_a_file_are_packed_as_the_whole(kernels: Kernels, kind: str) -> None:
    """Views of some channels of some rows; each part has its own factor."""
    codes, scales = random_fp4(kind, 60, 256)
    codes, scales = codes[3:53, 32:96], scales[3:53, 64 // GROUPS[kind] : 192 // GROUPS[kind]]
    weights = packed.fp4(50, 128, GROUPS[kind])
    factors = {(16, 33): 2.0, (0, 16): 1.0, (33, 50): 0.3}
    for (first, stop), factor in factors.items():
        kernels.pack_fp4(weights, first, codes[first:stop], scales[first:stop], factor)
    whole = made(kernels, kind, codes.contiguous(), scales.contiguous())
    assert torch.equal(weights.packed, whole.packed)
    x = torch.randn(3, 128)
    expected = kernels.linear(whole, x)
    for (first, stop), factor in factors.items():
        own = kernels.linear(weights, x)[:, first:stop]
        torch.testing.assert_close(own, expected[:, first:stop] * factor, rtol=1e-6, atol=0)


@every_kind
def test_experts_are_their_products(kernels: Kernels, kind: str) -> None:
    """A router that gives all to one expert: the block is that feed-forward."""
    parts = [(random_fp4(kind, 128, 96), random_fp4(kind, 96, 64)) for _ in range(3)]
    experts = [(made(kernels, kind, *w13, 1e-3), made(kernels, kind, *w2, 1e-3)) for w13, w2 in parts]
    x, gate = torch.rand(20, 96) + 0.1, torch.zeros(3, 96)
    gate[1] = 1
    found = kernels.experts(PackedExperts(gate, experts, None, 1, 1.0), x, norm=None, eps=0, onto=torch.zeros(20, 96))
    w13, w2 = experts[1]
    assert torch.equal(found, kernels.linear(w2, kernels.linear(w13, x), gated=True))


def test_rows_that_do_not_fit_are_refused(kernels: Kernels) -> None:
    weights = packed.fp4(16, 64, 16)
    codes, scales = random_fp4("mxfp4", 16, 64)
    with pytest.raises(ValueError, match=r"scales of \[16, 2\] do not fit nvfp4 of 64"):
        kernels.pack_fp4(weights, 0, codes, scales, 1.0)
    with pytest.raises(ValueError, match=r"rows 1..16 of 64 are not in 16 of 64"):
        kernels.pack_fp4(weights, 1, *random_fp4("nvfp4", 16, 64), 1.0)
    with pytest.raises(ValueError, match="weights have the layout q4, the rows fit nvfp4 or mxfp4"):
        kernels.pack_fp4(packed.blocks(16, 64, 16, with_minima=False), 0, *random_fp4("nvfp4", 16, 64), 1.0)
