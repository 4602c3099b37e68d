"""The benchmark of ranks on a tiny model, and its simulated stages against the theory of pipelines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pipeline_schedule

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
SHAPES = [(2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4), (4, 8)]


def test_the_theory_of_idle_stages() -> None:
    """GPipe (arXiv 1811.06965), section 2.3: the idle share of M stages and m micro-batches. By hand for 2 and 4."""
    assert [pipeline_schedule.theory(2, m) for m in (1, 2, 4)] == pytest.approx([1 / 2, 1 / 3, 1 / 5])
    assert [pipeline_schedule.theory(4, m) for m in (1, 4)] == pytest.approx([3 / 4, 3 / 7])


@pytest.mark.parametrize(("stages", "m"), SHAPES)
def test_chunks_of_one_prompt_leave_stages_idle_as_in_theory(stages: int, m: int) -> None:
    assert pipeline_schedule.prompt(stages, m) == pytest.approx([pipeline_schedule.theory(stages, m)] * stages)


@pytest.mark.parametrize(("stages", "m"), SHAPES)
def test_as_many_groups_as_stages_keep_all_stages_busy(stages: int, m: int) -> None:
    """But for the first and the last steps, which are 2 of 100."""
    idle = pipeline_schedule.decode(stages, m)
    assert idle == pytest.approx([pipeline_schedule.steady(stages, m)] * stages, abs=0.02)


def test_the_command_measures_a_tiny_model(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.parallel",
        "--quick",
        "--idle",
        "--quantize",
        "none",
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [*command, "--only", "pipeline 2", "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = json.loads(output.read_text()).values()
    assert found["description"]["layout"] == "pp2"
    micro = [f"{what} in {m}" for m in (1, 2, 4) for what in ("prefill 16", "decode 2")]
    assert list(found["rows"]) == ["prefill 16", "decode 2", *micro]
    assert all(row["speed"] > 0 and len(row["idle"]) == 2 for row in found["rows"].values())
    assert found["rows"]["prefill 16 in 1"]["step_bytes"] == 16 * 64 * 4  # hidden states in float32
    assert "4 │ 8" in " ".join(done.stdout.split())
