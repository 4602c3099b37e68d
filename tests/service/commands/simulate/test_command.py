"""`noria simulate`: what it prints, what it refuses, and that it needs no torch."""

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from benchmarks.costs.roofline import GPUS, MISTRAL_7B, estimate
from model.checkpoint.resolve import EMBEDDED
from service.cli import main
from service.commands.simulate.costs import parse, read, to_json
from tests.service.commands.simulate.costs import costs, written
from tests.uninstalled import uninstalled

SHIPPED = sorted((Path(__file__).parents[4] / "deploy/costs").glob("*.json"))


def run(*arguments: object, command: str = "simulate") -> tuple[int, str]:
    """The exit code and the output of `noria COMMAND ARGUMENTS` in this process."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output, redirect_stderr(output):
        patch.setattr("sys.argv", ["noria", command, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), output.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Costs of a second for each step, and one sequence at a time."""
    return written(costs(max_sequences=1, max_step_tokens=8), tmp_path)


@pytest.fixture
def burst(tmp_path: Path) -> Path:
    """Ten requests at once, each of which takes one step."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 4, "output_length": 1}\n' * 10)
    return path


def test_the_report(file: Path, burst: Path) -> None:
    """The requests end after 1, 2, ... 10 s: four of them within 4 s."""
    code, output = run("--trace", burst, "--costs", file, "--ttft", 4, "--inter-token", 1, "--json")
    report = json.loads(output)
    assert code == 0
    assert report["requests"] == {"total": 10, "answered": 10, "refused": {}}
    assert report["goodput"]["share"] == 0.4
    assert report["goodput"]["requests_per_second"] == 0.4
    assert report["latency_seconds"]["time_to_first_token"] == {"mean": 5.5, "p50": 5.0, "p90": 9.0, "p99": 10.0}
    assert report["latency_seconds"]["inter_token"] is None
    assert report["engine"]["most_waiting"] == 10
    assert report["engine"]["mean_waiting"] == 4.5
    assert report["engine"]["busy_share"] == 1.0
    assert report["costs"] == {"title": "on paper"}


def test_the_least_replicas_for_a_goal(file: Path, burst: Path) -> None:
    """A replica serves a request a second. Ten within 4 s take three replicas, within 0.5 s no number suffices."""
    code, output = run("--trace", burst, "--costs", file, "--ttft", 4, "--goal", 1, "--json")
    assert (code, json.loads(output)["replicas"]) == (0, 3)
    code, output = run("--trace", burst, "--costs", file, "--ttft", 4, "--goal", 0.8, "--json")
    assert (code, json.loads(output)["replicas"]) == (0, 2)
    code, output = run("--trace", burst, "--requests", 2, "--costs", file, "--ttft", 0.5, "--goal", 1, "--json")
    assert (code, json.loads(output)["goodput"]["share"]) == (1, 0.0)


def test_tenants_share_a_replica(tmp_path: Path, file: Path) -> None:
    """Eight requests of one key come before one of another, which waits for one of them only."""
    line = '{{"timestamp": 0, "input_length": 4, "output_length": 1, "tenant": "{}"}}\n'
    path = tmp_path / "trace.jsonl"
    path.write_text(line.format("many") * 8 + line.format("one"))
    _, output = run("--trace", path, "--costs", file, "--ttft", 2, "--json")
    assert json.loads(output)["goodput"]["tenants"] == {"many": 1 / 8, "one": 1.0}
    assert "of one" in run("--trace", path, "--costs", file)[1]


def test_tables_for_people(file: Path) -> None:
    code, output = run("--rate", 0.5, "--input", "uniform:4-9", "--output", 3, "--requests", 20, "--costs", file)
    assert code == 0
    assert "on paper" in output
    assert "20 of 20" in output
    assert "time to first token" in output


def test_pages_from_the_plan_of_a_model(tmp_path: Path) -> None:
    """The embedded model in 2 GiB: fewer pages than a free machine gives it."""
    path = written(costs(page_size=32, pages=9000, max_sequences=64, max_step_tokens=512, max_model_len=8192), tmp_path)
    wanted = ("--device", "cpu", "--memory", "2GiB", "--json")
    model = json.loads(run(*wanted, command="plan")[1])
    code, output = run("--rate", 1, "--requests", 3, "--costs", path, "--model", EMBEDDED, *wanted)
    limits = json.loads(output)["limits"]
    assert code == 0
    assert limits["pools"][0]["pages"] == model["pools"][0]["n_pages"]
    assert limits["max_model_len"] == model["served"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "give one of --trace and --rate"),
        (["--rate", 1, "--trace", "x"], "give one of --trace and --rate"),
        (["--rate", 1, "--speed", 2], "--speed 2.0 has no meaning with --rate"),
        (["--trace", "x", "--input", 5], "--input 5 has no meaning with --trace"),
        (["--rate", 1, "--input", "5-9"], "--input must be N, uniform:LOW-HIGH or lognormal:MEDIAN,SIGMA, got '5-9'"),
        (["--rate", 1, "--goal", 0.9, "--replicas", 3], "--goal finds the number of replicas"),
        (
            ["--rate", 1, "--goal", 2],
            "'--goal' (env var: 'NORIA_SIMULATE_GOAL'): Input should be less than or equal to 1",
        ),
        (["--rate", 1, "--memory", "2GiB"], "--memory 2GiB has no meaning with the pages of --costs"),
        (["--rate", 1, "--model", "x"], "--model needs --memory"),
        (["--rate", 1, "--max-sequences", 9], "--max-sequences must be at most --max-step-tokens (8), got 9"),
    ],
)
def test_options_that_exclude_each_other(flags: list[Any], says: str, file: Path) -> None:
    code, output = run(*flags, "--costs", file)
    assert code
    assert says in " ".join(output.split())


def test_costs_are_needed() -> None:
    assert "--costs is missing" in run("--rate", 1)[1]


def without(name: str) -> dict[str, Any]:
    found = to_json(costs())
    del found[name]
    return found


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([], "the file must have the fields about, lines, request, engine, found list"),
        (without("lines"), "the file must have the fields .*found"),
        (to_json(costs()) | {"lines": []}, "lines must be a list with at least one entry"),
        (to_json(costs()) | {"request": -1}, "request must be a number of seconds of at least 0, got -1"),
        (to_json(costs()) | {"about": 3}, "about must be an object, got 3"),
        (to_json(costs()) | {"lines": [{"step": 1}]}, r"lines\[0\] must have the fields step, token"),
        (to_json(costs()) | {"lines": [dict.fromkeys(("step", "token", "sequence", "key", "pair"), 0)]}, "all 0"),
        (to_json(costs(pages=0)), r"engine.pools\[0\].pages must be an integer of at least 1, got 0"),
        (to_json(costs(page_size=True)), "engine.page_size must be an integer of at least 1, got True"),
    ],
)
def test_a_file_of_costs_that_is_none(found: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        parse(found)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(found))
    assert f"--costs {path}" in " ".join(run("--rate", 1, "--costs", path)[1].split())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_costs(path: Path) -> None:
    code, output = run("--rate", 1, "--requests", 20, "--costs", path, "--json")
    report = json.loads(output)
    assert (code, report["requests"]["answered"]) == (0, 20)
    assert report["costs"]["title"].startswith("estimate:" if path.stem.startswith("estimate") else "measured:")


@pytest.mark.parametrize("name", GPUS)
def test_estimates_are_those_of_the_roofline(name: str) -> None:
    [path] = [path for path in SHIPPED if name in path.stem]
    assert read(path) == estimate(GPUS[name], MISTRAL_7B)


def test_the_roofline_on_paper() -> None:
    """7.25 G parameters; a position has keys and values of 32 layers, 8 heads of 128, 2 bytes: 131072 bytes."""
    gpu, head = GPUS["h100-80gb"], 4096 * 32768
    layers = 32 * (2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336 + 2 * 4096) + 4096
    assert layers + 2 * head == pytest.approx(7.248e9, rel=1e-3)
    found = estimate(gpu, MISTRAL_7B)
    one = found.seconds(1, 1, 1000, 1000)
    assert one == pytest.approx(0.0005 + ((layers + head) * 2 + 131072 * 1000) / (3.35e12 * 0.8))
    chunk = found.seconds(2048, 1, 2048, 2048 * 2049 / 2)
    flops = 2 * (layers * 2048 + head) + 4 * 32 * 4096 * 2048 * 2049 / 2
    assert chunk == pytest.approx(0.0005 + flops / (989e12 * 0.6))


def test_it_needs_no_torch(file: Path) -> None:
    arguments = [
        "noria",
        "simulate",
        "--rate",
        "1",
        "--requests",
        "3",
        "--input",
        "9",
        "--output",
        "3",
        "--costs",
        str(file),
    ]
    code = f"{uninstalled('torch')}from service.cli import main; sys.argv = {arguments}; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 of 3" in done.stdout
