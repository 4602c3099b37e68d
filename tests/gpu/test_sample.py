"""Sampling on a device, with the bits of the CPU's kernel. Run with `pytest -m gpu tests/gpu`."""

import os

import numpy as np
import pytest

from model.kernels.cpu import native

pytest.importorskip("triton")

from model.kernels.cuda import sample
from tests.model.kernels.sampling_case import random_logits, random_rows, sampled

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("NORIA_TEST_DEVICE", "cuda")


@pytest.mark.parametrize("vocab_size", [500, 32_000, 32_768, 131_072, 151_937])
def test_tokens_and_values_are_those_of_the_cpu(vocab_size: int) -> None:
    """More rows than programs that run at once."""
    source = np.random.default_rng(vocab_size)
    logits, rows = random_logits((500, vocab_size), source), random_rows(500, source)
    kernels = native.kernels()
    assert kernels is not None
    assert sampled(sample.sample, logits, rows, DEVICE) == sampled(kernels.sample, logits, rows)
