"""These tests run where `scripts/on-simulated-gpu` runs Python. In their own process kernels compute nothing."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def simulated() -> None:
    if not torch.cuda.is_available() or not torch.cuda.get_device_name().startswith("Simulated"):
        pytest.fail("there is no simulated GPU: run `make test-gpu-simulated`")
    from tests.gpu.simulated import noop

    noop.install()
