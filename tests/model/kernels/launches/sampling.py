"""The launches of sampling."""

from collections.abc import Callable

import numpy as np
import torch

from model.kernels.cuda import sampling


def sample() -> None:
    """Rows with every parameter."""
    rows = np.zeros(3, dtype=sampling.row_type())
    rows["temperature"], rows["top_k"], rows["top_p"], rows["step"] = 1.0, 50, 0.9, 1
    sampling.sample(torch.empty(3, 131_072), rows)


LAUNCHES: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {"sampling": (sample, (80, 86, 89, 90, 100))}
"""The launched functions, and the compute capabilities, times ten, for which they are compiled."""
