"""The path for AMX with its instructions emulated in plain C: the bits are those of AVX-512."""

import pytest
import torch

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedExperts
from tests.model.fp4 import GROUPS
from tests.model.records import KINDS
from tests.model.weights import random_weights


@pytest.mark.parametrize("kind", ["int8", "bfloat16", "q4_k", *KINDS, *GROUPS])
@pytest.mark.parametrize(
    ("n_rows", "n_in", "n_out"), [*((n, 200, 72) for n in (1, 2, 7, 16, 33, 150)), (47, 2500, 72), (33, 64, 1024)]
)
@pytest.mark.parametrize("added", [False, True])
def test_tiles_give_the_bits_of_vectors(
    emulated: Kernels, kind: str, n_rows: int, n_in: int, n_out: int, added: bool
) -> None:
    """Of 2500 channels only a part is unpacked at once. Up to three rows have outliers, in some groups of channels.

    Tiles do not store rows of 1024 results to memory at once.
    """
    results = []
    for kernels in (emulated, native.variant("avx512vnni")):
        torch.manual_seed(0)
        packed = random_weights(kernels, kind, n_out, n_in)
        x, before = torch.randn(n_rows, packed.n_in), torch.randn(n_rows, n_out)
        x[[0, n_rows // 2, -1], 3::70] *= 50
        results.append(kernels.linear(packed, x, onto=before if added else None))
    assert torch.equal(*results)


@pytest.mark.parametrize("kind", ["int8", "bfloat16", *KINDS, *GROUPS])
def test_experts_get_the_bits_of_vectors(emulated: Kernels, kind: str) -> None:
    """Three experts with about 60 of 90 rows each: whole tiles and rows beyond them."""
    results = []
    for kernels in (emulated, native.variant("avx512vnni")):
        torch.manual_seed(0)
        experts = [(random_weights(kernels, kind, 128, 96), random_weights(kernels, kind, 96, 64)) for _ in range(3)]
        gate, x, norm = torch.randn(3, 96), torch.randn(90, 96), torch.rand(96)
        block = PackedExperts(gate, experts, experts[0], 2, 1.5)
        assert (x @ gate.T).topk(2).indices.unique(return_counts=True)[1].min() > 32
        results.append(kernels.experts(block, x, norm=norm, eps=1e-5, onto=x.clone()))
    assert torch.equal(*results)
