"""The benchmark of the peers: the choice of engines, the comparison and the stored result."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.engines import Engine, Online, engines, engines_on
from benchmarks.peers.loads import LOADS
from benchmarks.peers.results import Row, rows
from benchmarks.workload import Workload


@pytest.mark.parametrize("flags", [["--engines", "nosuch"], ["--gguf", "x.gguf", "--only", "online"]])
def test_flags_that_leave_nothing_are_refused(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.json"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(sys, "argv", ["peers", *flags, "--output", str(file)])
    with pytest.raises(SystemExit, match="no engine is left to measure"):
        peers.main()
    assert not file.exists()


def test_every_program_that_measures_is_there(tmp_path: Path) -> None:
    online = Online(LOADS, 1.0)
    known = [*engines(tmp_path, Workload(2), online), *engines_on(tmp_path / "x.gguf", tmp_path, Workload(2))]
    commands = [part for engine in known for part in getattr(engine.measure, "args", ()) if isinstance(part, list)]
    modules = {command[command.index("-m") + 1] for command in commands}
    assert modules >= {
        "benchmarks.engine",
        "benchmarks.peers.without_http",
        "benchmarks.peers.vllm",
        "benchmarks.peers.pace",
    }
    assert all(find_spec(name) for name in modules)


def test_rows_compare_medians_at_equal_bits_best_first() -> None:
    kinds = {"ours": ("8", "ours"), "slow": ("8", "peer"), "fast": ("8", "peer"), "wide": ("16", "peer")}
    chosen = [Engine(name, bits, kind, False, dict) for name, (bits, kind) in kinds.items()]
    first = "HTTP 32: ms to first token, p50"
    found = {
        "ours": {"decode 8": [10.0, 90.0, 30.0], first: [5.0]},
        "slow": {"decode 8": [10.0], first: [20.0]},
        "fast": {"decode 8": [15.0], first: [10.0]},
        "wide": {"decode 8": [99.0]},
    }
    made = list(rows(chosen, found))
    assert made == [
        Row("decode 8", "8", 30.0, {"fast": 15.0, "slow": 10.0}, {}),
        Row("decode 8", "16", None, {"wide": 99.0}, {}),
        Row(first, "8", 5.0, {"fast": 10.0, "slow": 20.0}, {}),
    ]
    assert [*made[0].peers] == [*made[2].peers] == ["fast", "slow"]
