"""Shared by the tests of the kernels: every variant in turn."""

import pytest

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels


@pytest.fixture(params=native.LEVELS[::-1])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The variant, or the best below it that this processor runs."""
    order = native.LEVELS[::-1]
    return native.variant(next(name for name in order[order.index(request.param) :] if name in native.available()))
