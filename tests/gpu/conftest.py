"""Shared by the tests on a GPU: each module begins with all of its memory."""

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def _all_memory() -> Iterator[None]:
    yield
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # a runner takes all free memory
