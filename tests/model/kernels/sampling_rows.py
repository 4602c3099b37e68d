"""Rows of parameters for the tests of sampling kernels."""

import numpy as np
from numpy.typing import NDArray


def random_rows(n: int, source: np.random.Generator, form: "np.dtype[np.void]") -> NDArray[np.void]:
    """n rows of `form`, with values at both ends of each parameter and between them."""
    rows = np.zeros(n, dtype=form)
    rows["temperature"] = source.choice([0, 0.3, 1, 2, 1e-30, 1e30], n, p=[0.1, 0.3, 0.3, 0.2, 0.05, 0.05])
    rows["min_p"] = source.choice([0, 0.01, 0.5], n, p=[0.7, 0.2, 0.1])
    rows["top_p"] = source.choice([1, 0.9, 0.5, 0.999999, 1e-30], n)
    rows["top_k"] = source.choice([0, 1, 5, 50, 300, 2**31 - 1], n)
    rows["start"], rows["step"] = source.integers(-(2**31), 2**31, (2, n))
    rows["step"] |= 1
    return rows
