"""Shared by the tests of the model: the CPU kernels in every variant, and the product of Triton's interpreter."""

import pytest

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from tests.model.kernels.interpreter import product_in_order

__all__ = ["kernels", "product_in_order"]


@pytest.fixture(params=native.LEVELS[::-1])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The variant, or the best below it that this processor runs."""
    order = native.LEVELS[::-1]
    return native.variant(next(name for name in order[order.index(request.param) :] if name in native.available()))
