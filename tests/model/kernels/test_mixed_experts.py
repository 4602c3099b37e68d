"""Experts whose matrices have any pair of layouts, as in a file of which some matrices are not quantized.

A build with AddressSanitizer runs them too (tests/machines/test_compilers.py): it sees each access beyond an array.
"""

import pytest
import torch
from torch import Tensor

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedExperts, PackedWeights
from model.kernels.cpu.records import FORMATS
from tests.model.weights import random_weights

DIM, HIDDEN = 256, 512


def products(kernels: Kernels, pair: tuple[PackedWeights, PackedWeights], x: Tensor) -> Tensor:
    return kernels.linear(pair[1], kernels.linear(pair[0], x), gated=True)


@pytest.mark.each
@pytest.mark.parametrize("w13", FORMATS)
def test_a_block_gives_the_products_of_its_experts(kernels: Kernels, w13: str) -> None:
    """The second expert and the shared one have the layouts of the first in the other order."""
    torch.manual_seed(0)
    x, gate = torch.rand(50, DIM) + 0.1, torch.zeros(2, DIM)
    gate[0, : DIM // 2], gate[1, DIM // 2 :] = 1, 1
    second = (x @ gate.T).argmax(1).bool()[:, None]
    assert 0 < second.sum() < len(x)
    for w2 in FORMATS:
        pairs = [
            (random_weights(kernels, up, 2 * HIDDEN, DIM), random_weights(kernels, down, DIM, HIDDEN))
            for up, down in ((w13, w2), (w2, w13), (w2, w13))
        ]
        block = PackedExperts(gate, pairs[:2], pairs[2], 1, 1.0)
        found = kernels.experts(block, x, norm=None, eps=0, onto=torch.zeros_like(x))
        outputs = [products(kernels, pair, x) for pair in pairs]
        assert torch.equal(found, torch.where(second, outputs[1], outputs[0]) + outputs[2]), w2
