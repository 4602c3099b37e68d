"""Every kernel compiles for every card and fits it; on an H100 no register changes under a running product.

`.gpu-simulated/kernels.txt` then has the registers of each, the memory of those that did not fit, and shared memory.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.simulated.kernels import CARDS

pytestmark = pytest.mark.simulated

ROOT = Path(__file__).parents[3]
TABLE = ROOT / ".gpu-simulated" / "kernels.txt"
COLUMNS = ("registers", "stack", "shared", "limit", "warps", "hazards")
Facts = list[dict[str, Any]]


@pytest.fixture(scope="module", params=CARDS)
def kernels(request: pytest.FixtureRequest) -> Facts:
    """Those of a card, from a process that computes nothing else: compiling replaces Triton's driver."""
    command = [sys.executable, "-m", "tests.gpu.simulated.kernels", request.param]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    write(request.param, found)
    return found


def write(card: str, found: Facts) -> None:
    """Put the kernels of a card into the table, in place of those of an earlier run."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    head = f"{'card':6}{'launch':36}  {'kernel':14}" + "".join(f"{name:>10}" for name in COLUMNS)
    kept = [line for line in lines[1:] if not line.startswith(f"{card} ")]
    own = [
        f"{card:6}{one['launch']:36}  {one['kernel']:14}" + "".join(f"{one[name]:10}" for name in COLUMNS)
        for one in found
    ]
    TABLE.write_text("\n".join([head, *kept, *own]) + "\n")


def named(found: Facts) -> list[str]:
    return [f"{one['launch']}: {one['kernel']}" for one in found]


def test_they_compile(kernels: Facts) -> None:
    assert len(kernels) > 40
    assert not [f"{one['launch']}: {one['error']}" for one in kernels if one["error"]]


def test_they_fit_the_shared_memory(kernels: Facts) -> None:
    assert not named([one for one in kernels if one["shared"] > one["limit"]])


def test_no_register_changes_under_a_running_product(kernels: Facts) -> None:
    assert not [f"{one['launch']}: {one['hazards']}" for one in kernels if one["hazards"]]
