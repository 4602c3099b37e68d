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


@pytest.fixture
def fused() -> list[Kernels]:
    """The variants of this processor whose multiply-adds round once."""
    arm = platform.machine() in ("aarch64", "arm64")
    found = [native.variant(name) for name in native.available() if arm or name != "baseline"]
    return found or pytest.fail("no variant with fused multiply-adds")


def random_rows(n: int, source: np.random.Generator) -> NDArray[np.void]:
    rows = np.zeros(n, dtype=sampling())
    rows["temperature"] = source.choice([0, 0.3, 1, 2, 1e-30, 1e30], n, p=[0.1, 0.3, 0.3, 0.2, 0.05, 0.05])
    rows["min_p"] = source.choice([0, 0.01, 0.5], n, p=[0.7, 0.2, 0.1])
    rows["top_p"] = source.choice([1, 0.9, 0.5, 0.999999, 1e-30], n)
    rows["top_k"] = source.choice([0, 1, 5, 50, 300, 2**31 - 1], n)
    rows["start"], rows["step"] = source.integers(-(2**31), 2**31, (2, n))
    rows["step"] |= 1
    return rows


def sampled(kernels: Kernels, logits: Tensor, rows: NDArray[np.void]) -> tuple[list[int], list[float]]:
    """The tokens, and the values that they have afterwards."""
    values = logits.clone()
    tokens = kernels.sample(values, rows)
    return tokens.tolist(), values.gather(1, tokens.clamp(min=0)[:, None])[tokens >= 0].flatten().tolist()


def test_vectors_of_all_widths_sample_the_same(fused: list[Kernels]) -> None:
    """Every other row is rounded to bfloat16, as many heads do: ties are common."""
    source = np.random.default_rng(0)
    logits, rows = torch.from_numpy(source.standard_normal((400, 3001), np.float32) * 3), random_rows(400, source)
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
