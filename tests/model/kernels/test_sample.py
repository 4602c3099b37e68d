"""Sampling by the compiled kernel: the same bits in vectors of any width, and exact sums."""

import platform

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.records import sampling
from tests.model.kernels.sampling_rows import random_rows


@pytest.fixture
def fused() -> list[Kernels]:
    """The variants of this processor whose multiply-adds round once."""
    arm = platform.machine() in ("aarch64", "arm64")
    found = [native.variant(name) for name in native.available() if arm or name != "baseline"]
    return found or pytest.fail("no variant with fused multiply-adds")


def sampled(kernels: Kernels, logits: Tensor, rows: NDArray[np.void]) -> tuple[list[int], list[float]]:
    """The tokens, and the values that they have afterwards."""
    values = logits.clone()
    tokens = kernels.sample(values, rows)
    return tokens.tolist(), values.gather(1, tokens.clamp(min=0)[:, None])[tokens >= 0].flatten().tolist()


def test_vectors_of_all_widths_sample_the_same(fused: list[Kernels]) -> None:
    """Every other row is rounded to bfloat16, as many heads do: ties are common."""
    source = np.random.default_rng(0)
    logits = torch.from_numpy(source.standard_normal((400, 3001), np.float32) * 3)
    rows = random_rows(400, source, sampling())
    logits[::2] = logits[::2].bfloat16().float()
    first, *others = [sampled(kernels, logits, rows) for kernels in fused]
    assert all(other == first for other in others)


@pytest.mark.parametrize("n", [1, 7, 1000, 1024, 1025, 5000])
def test_sums_are_exact(n: int, fused: list[Kernels]) -> None:
    """Half of the sum of equal weights is half of them: more would be hidden, or fewer, with any rounding."""
    row = np.zeros(1, dtype=sampling())
    row[["temperature", "top_p", "start", "step"]] = (1, 0.5, 12345, 6789)
    for kernels in fused:
        logits = torch.full((1, n), 5.0)
        kernels.sample(logits, row)
        assert int((logits > 0).sum()) == (n + 1) // 2
