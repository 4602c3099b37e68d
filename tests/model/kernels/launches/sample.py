"""The launches of sampling."""

from collections.abc import Callable

import numpy as np
import torch

from model.kernels.cpu.records import SAMPLING
from model.kernels.cuda.sample import sample


def sampling(vocab_size: int) -> Callable[[], None]:
    return lambda: void(sample(torch.empty(2, vocab_size), np.zeros(2, dtype=SAMPLING)))


def void(_: object) -> None: ...


LAUNCHES: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {
    "sampling": (sampling(131_072), (90,)),
    "sampling, odd vocabulary": (sampling(32_767), (80,)),
}
