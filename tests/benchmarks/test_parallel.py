"""The benchmark of ranks on a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]


def test_the_command_measures_a_tiny_model(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.parallel", "--quick", "--quantize", "none", "--device", "cpu"]
    command += ["--only", "pipeline 2", "--output", str(output)]
    subprocess.run(command, cwd=ROOT, check=True)
    (found,) = json.loads(output.read_text()).values()
    assert found["description"]["layout"] == "pp2"
    assert list(found["rows"]) == ["prefill 16", "decode 2"]
    assert all(row["speed"] > 0 and len(row["idle"]) == 2 for row in found["rows"].values())
