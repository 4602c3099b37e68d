"""The tests for a device pass on each kind of card, where each operation and each launch is computed on the CPU.

Those of memory and of waits pass where kernels compute nothing: their networks are too large for the interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.simulated.card import Card

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]
NUMBERS = ("cuda", "ahead", "sample", "schemes", "selftest")
CARDS = ("8.0", "9.0", "10.0")


def run(card: Card, plugin: str, *tests: str) -> None:
    """Run tests for a device, with a plugin of this folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", f"tests.gpu.simulated.{plugin}"]
    command += ["-m", "gpu", "--tb=short", *tests]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | card.own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    refusals = [
        line for line in card.refusals.splitlines() if "out of memory" not in line
    ]  # a test of memory wants those
    assert not refusals


@pytest.mark.parametrize("capability", CARDS)
def test_numbers(capability: str, tmp_path: Path) -> None:
    run(Card(capability, tmp_path), "compute", *(f"tests/gpu/test_{name}.py" for name in NUMBERS))


def test_memory_and_waits(tmp_path: Path) -> None:
    run(Card("9.0", tmp_path), "noop", "tests/gpu/test_memory.py", "tests/gpu/test_waits.py")
