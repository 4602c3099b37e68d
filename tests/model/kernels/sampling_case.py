"""Shared by the tests of sampling: random rows of parameters and of logits."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu.records import SAMPLING


def random_rows(n: int, source: np.random.Generator) -> NDArray[np.void]:
    rows = np.zeros(n, dtype=SAMPLING)
    rows["temperature"] = source.choice([0, 0.3, 1, 2, 1e-30, 1e30], n, p=[0.1, 0.3, 0.3, 0.2, 0.05, 0.05])
    rows["min_p"] = source.choice([0, 0.01, 0.5], n, p=[0.7, 0.2, 0.1])
    rows["top_p"] = source.choice([1, 0.9, 0.5, 0.999999, 1e-30], n)
    rows["top_k"] = source.choice([0, 1, 5, 50, 300, 2**31 - 1], n)
    rows["start"], rows["step"] = source.integers(-(2**31), 2**31, (2, n))
    rows["step"] |= 1
    return rows


def random_logits(shape: tuple[int, int], source: np.random.Generator) -> Tensor:
    """Every other row is rounded to bfloat16, as many heads do: ties are common."""
    logits = torch.from_numpy(source.standard_normal(shape, np.float32) * 3)
    logits[::2] = logits[::2].bfloat16().float()
    return logits


def sampled(
    kernel: Callable[[Tensor, NDArray[np.void]], Tensor], logits: Tensor, rows: NDArray[np.void], device: str = "cpu"
) -> tuple[list[int], list[float]]:
    """The tokens, and the values that they have afterwards."""
    values = logits.to(device, copy=True)
    tokens = kernel(values, rows)
    return tokens.tolist(), values.gather(1, tokens.clamp(min=0)[:, None])[tokens >= 0].flatten().tolist()
