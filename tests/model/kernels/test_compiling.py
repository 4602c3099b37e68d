"""The GPU's products become machine code, though there is no GPU: see compile_launches.py."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("capability", ["75", "80", "90"])
def test_products_compile(capability: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.model.kernels.compile_launches", capability]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
