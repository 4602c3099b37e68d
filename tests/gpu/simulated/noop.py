"""Lets Noria run where kernels compute nothing: `noop.install()` before a model is loaded.

A server gets it with the folder `hooks/noop` on PYTHONPATH, in each of its processes that loads a model. All that is
replaced here are questions about numbers, which no kernel has computed.
"""

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from model import selftest
from model.machine.transfers import Fetch
from tests.gpu.simulated.shown import hide_numbers

TOKEN = int(os.environ.get("SIM_TOKEN", "7"))
"""Each sampled token."""


def install() -> None:
    hide_numbers()
    # Private: no public door of PyTorch says what a kernel has computed.
    Tensor.isfinite = finite(Tensor.isfinite)  # type: ignore[method-assign]
    selftest.failing = lambda checks: {}
    Fetch.wait = fetched(Fetch.wait)  # type: ignore[method-assign]


def finite(own: Any) -> Any:
    """`Tensor.isfinite`, after which `all()` is true on a GPU. It launches what it launches otherwise."""

    def isfinite(values: Tensor) -> Tensor:
        found: Tensor = own(values)
        if values.is_cuda:
            found.all = lambda: yes(found)  # type: ignore[method-assign, assignment]
        return found

    return isfinite


def yes(values: Tensor) -> Tensor:
    """True on the device of these values, after a reduction of them."""
    Tensor.all(values)
    return constant(values.device)


@cache
def constant(device: torch.device) -> Tensor:
    return torch.ones((), dtype=torch.bool).to(device)


def fetched(own: Any) -> Any:
    """`Fetch.wait`, which reads TOKEN for each integer, and zeros for other numbers."""

    def wait(fetch: Fetch) -> Tensor:
        return torch.full_like(found := own(fetch), 0 if found.is_floating_point() else TOKEN)

    return wait


def pytest_configure() -> None:
    """pytest calls it in a module that `-p` names."""
    os.environ["NORIA_TEST_SIMULATED"] = "idle"  # see tests/model/attention/attending.py
    install()
