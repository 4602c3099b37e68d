"""Sampling on a device: a row's token does not depend on the rows beside it. Run with `pytest -m gpu tests/gpu`."""

import os

import pytest
import torch

from model.batch import Slice
from model.sampling_params import SamplingParams
from model.step import distribution
from tests.gpu.cases import sized

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("NORIA_TEST_DEVICE", "cuda")
KINDS = ({}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.05}, {"top_k": 2000, "top_p": 0.5}, {"temperature": 0.0})


@pytest.mark.parametrize("vocab_size", sized([500, 32_768, 131_072], [500, 32_768]))
def test_tokens_and_values_are_those_of_each_row_alone(vocab_size: int) -> None:
    params = [SamplingParams(seed=i, **KINDS[i % len(KINDS)]) for i in range(sized(48, 12))]  # type: ignore[arg-type]
    items = [Slice(0, [0], 1, 0, 1, (), each) for each in params]
    logits = (torch.randn(len(items), vocab_size, device=DEVICE) * 2).bfloat16().float()
    together, kernels = logits.clone(), distribution.on_gpu(logits.device, vocab_size)
    tokens = distribution.choose(together, items, kernels)
    for i, item in enumerate(items):
        row = logits[i : i + 1].clone()
        assert torch.equal(distribution.choose(row, [item], kernels), tokens[i : i + 1])
        assert torch.equal(row, together[i : i + 1])
