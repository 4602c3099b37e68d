"""Every Triton kernel compiles for GPUs, also on a machine without one: the interpreter accepts more than compilers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.kernels.compiling import LAUNCHES, Compiled

ROOT = Path(__file__).parents[3]
LEAST_SHARED = 99 * 1024
"""Bytes of shared memory that a program may have on every GPU from 8.0 on: those of 8.6, 8.9 and 12.0."""

CASES = [(name, capability) for name, (_, capabilities) in LAUNCHES.items() for capability in capabilities]


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    """All compiled kernels, from a process that does not interpret."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.model.kernels.compiling"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Compiled(**one) for one in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.timeout(600)  # of all of them; what has been compiled once is in Triton's cache
@pytest.mark.parametrize(("name", "capability"), CASES, ids=str)
def test_compiles(compiled: list[Compiled], name: str, capability: int) -> None:
    made = [one for one in compiled if (one.launch, one.capability) == (name, capability)]
    assert made
    assert not [one.error for one in made if one.error]
    assert all(one.shared <= LEAST_SHARED for one in made)
    if name.startswith("attention"):
        assert {one.kernel for one in made if one.tensor_cores} == {"attend_parts", "attend_tiles"}
