"""Every row of the GPU benchmark, in small shapes on the CPU."""

import json
import logging
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import engine
from benchmarks.gpu.__main__ import Processes, Results, here, judge, measure, table
from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.rows import CHECK, COPY, PRODUCT, ROWS, SECONDS
from benchmarks.gpu.shapes import (
    FULL,
    QUICK,
    adapter_bytes,
    decode_bytes,
    image_flops,
    prefill_flops,
    projections,
)
from tests.uninstalled import uninstalled

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]

CPU = torch.device("cpu")
BANDWIDTH, RATE = 4.3e12, 790e12
NOT_THERE = ["fastapi", "pydantic", "orjson", "httpx", "rich", "typer", "gguf", "llguidance", "uvicorn", "jinja2"]
NOT_THERE += ["starlette", "prometheus_client", "huggingface_hub", "mistral_common", "PIL", "transformers"]


@pytest.mark.parametrize(
    ("sparse", "scheme", "streams", "context", "floor"),
    [
        (False, "none", 1, 0, 302),
        (False, "none", 64, 1024, 12_100),
        (False, "none", 256, 1024, 22_600),
        (False, "fp8", 1, 0, 594),
        (False, "int4", 1, 0, 1_054),
        (True, "none", 1, 0, 168),
    ],
)
def test_floors_of_decoding(sparse: bool, scheme: str, streams: int, context: int, floor: float) -> None:
    """By hand, at 4.3 TB/s. A weight in int4 has 4.375 bits, its share of a scale and a zero of 24 bits among them."""
    config = FULL.sparse if sparse else FULL.dense
    assert streams * BANDWIDTH / decode_bytes(config, scheme, [context] * streams) == pytest.approx(floor, rel=0.01)


def test_floor_of_a_prompt() -> None:
    """The window has 4,096 tokens, the device 790 TFLOP/s. Attention adds 11 % to the 14.2 GFLOP of a token."""
    flops = prefill_flops(FULL.dense, 8192)
    assert 8192 * RATE / flops == pytest.approx(50_000, rel=0.02)
    pairs = sum(min(n + 1, 4096) for n in range(8192))
    assert flops == 2 * projections(FULL.dense) * 8192 + 32 * pairs * 4 * 4096 + 2 * 4096 * 32_000


def test_weights_that_multiply_are_all_but_norms_and_embeddings() -> None:
    dense, sparse = FULL.dense, FULL.sparse
    assert projections(dense) == dense.n_parameters - 2 * 4096 * 32_000 - 65 * 4096
    idle = 32 * 6 * 3 * 4096 * 14336
    assert projections(sparse) == sparse.n_parameters - 2 * 4096 * 32_000 - 65 * 4096 - idle


def test_floors_of_adapters_and_images() -> None:
    """Rank 1 has two vectors for each of 7 projections. An image has 403 M weights and 24 layers of attention."""
    in_and_out = 4096 * 2 + 2 * (4096 + 1024) + 4096 * 2 + 3 * (4096 + 14336)
    assert adapter_bytes(FULL.dense, 16) == 32 * 16 * in_and_out * 2
    n = 5476
    blocks = 24 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
    assert image_flops(FULL.seeing, n) == 2 * blocks * n + 24 * 4 * 1024 * n * n


@pytest.fixture(scope="module")
def found() -> Results:
    """The measurements of every row, in this process. After a row that fails, the rest of its group is tried too."""
    results: Results = {}
    for group in SECONDS:
        bench, left = Bench(QUICK, CPU, {}), [row.name for row in ROWS if row.group == group]
        while left:
            here(bench, left, results.__setitem__)
            left = [name for name in left if name not in results]
    return results


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_every_row_is_measured(row: Any, found: Results) -> None:
    measured = found[row.name]
    if "fp8" in row.name and "failed" in measured:
        assert "--quantize fp8" in measured["failed"]  # which a CPU need not have
        return
    assert measured.get("value", 0) > 0, measured
    verdict = judge(row, found)
    assert (verdict.floor is not None) == ("units" in measured)
    assert (verdict.ratio is not None) == (row.beside is not None)
    assert json.loads(json.dumps(verdict.to_json()))["row"] == row.name


def test_decoding_was_of_all_streams(found: Results) -> None:
    for n, name in enumerate(("decode 1", "decode 64", "decode 256")):
        assert found[name]["units"] == QUICK.streams[n]
        assert found[name]["pages_held"] == QUICK.streams[n]
    assert found["stream 200k"]["pages_grown"] == 0
    assert found["stream 200k"]["late"]["pages_held"] <= math.ceil((64 - 1 + QUICK.step_tokens) / 32) + 1
    assert found[CHECK]["tokens"] > 800
    assert found["128k long beside 63"]["pages_held"] > found["128k decode 64"]["pages_held"]
    assert found["arrivals"]["steps"] == QUICK.load.steps
    assert found["arrivals"]["mixed"] > 0


def test_steps_that_are_launched_ahead_are_counted() -> None:
    """A CPU does not run ahead. This runner says that it does: of a stream only the first steps are not ahead.

    PyTorch computes float32 on every processor. The compiled kernels know no token that is still to come.
    """
    runner = Bench(QUICK, CPU, {"dtype": "float32"}).runner()
    assert engine.decode(runner, QUICK, [4]).seen[-1].ahead == 0
    runner.info = replace(runner.info, runs_ahead=True)
    last = engine.decode(runner, QUICK, [4]).seen[-1]
    assert last.launched - last.ahead <= 2
    assert last.launched >= QUICK.tokens


CEILINGS: Results = {COPY: {"value": BANDWIDTH, "unit": "B/s"}, PRODUCT: {"value": RATE, "unit": "FLOP/s"}}


def row(name: str) -> Any:
    return next(row for row in ROWS if row.name == name)


def decoded(value: float, n_bytes: float = 14.2e9) -> dict[str, Any]:
    return {"value": value, "unit": "tok/s", "units": 1, "bytes": n_bytes}


def test_verdicts() -> None:
    found = CEILINGS | {"decode 1": decoded(270.0), "decode 1 fp8": decoded(480.0, 7.1e9)}
    found |= {"transformers static 1": {"value": 135.0, "unit": "tok/s"}, "decode 1 int4": {"failed": "Bang: no\nmore"}}
    bf16, fp8, peer, int4, cut = (
        judge(row(name), found)
        for name in ("decode 1", "decode 1 fp8", "transformers static 1", "decode 1 int4", "decode 64")
    )
    assert (bf16.share, bf16.met) == (pytest.approx(270 * 14.2e9 / BANDWIDTH), True)
    assert (fp8.share, fp8.ratio, fp8.met) == (pytest.approx(480 * 7.1e9 / BANDWIDTH), 480 / 270, False)
    assert (peer.share, peer.ratio, peer.met) == (None, 0.5, True)
    assert (int4.met, cut.met) == (None, None)
    lines = table([bf16, fp8, peer, int4, cut]).splitlines()
    assert [text in lines[1] for text in ("89.2%", ">= 85%", "yes")] == [True] * 3
    assert [text in lines[2] for text in ("1.78 x decode 1", "NO")] == [True] * 2
    assert "0.50 x decode 1" in lines[3]
    assert lines[4].endswith("Bang: no")
    assert "left out" in lines[5]


@pytest.mark.parametrize(
    ("value", "pages", "n_bytes", "met"),
    [(1.01, 0, 0, True), (1.2, 0, 0, False), (1.0, 3, 0, False), (1.0, 0, 2**21, False)],
)
def test_a_stream_that_grows(value: float, pages: int, n_bytes: int, met: bool) -> None:
    measured = {"value": value, "unit": "x", "pages_grown": pages, "bytes_grown": n_bytes}
    assert judge(row("stream 200k"), {"stream 200k": measured}).met is met


def test_a_process_that_dies_takes_one_row_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process dies in its second row, the second reports a failure, the third measures the other rows."""
    lives = [({"a": {"value": 1}}, "killed"), ({}, "crashed"), ({"c": {"failed": "x"}}, ""), ({"d": {"value": 2}}, "")]
    requested: list[list[str]] = []

    def child(self: Processes, names: list[str], end: float) -> tuple[Results, str]:
        requested.append(list(names))
        return lives[len(requested) - 1]

    monkeypatch.setattr(Processes, "_child", child)
    found = Processes([])("group", ["a", "b", "c", "d"], 60.0)
    assert requested == [["a", "b", "c", "d"], ["b", "c", "d"], ["c", "d"], ["d"]]
    assert found == {"a": {"value": 1}, "b": {"failed": "crashed"}, "c": {"failed": "x"}, "d": {"value": 2}}
    assert Processes([])("group", ["a"], 0.0) == {"a": {"failed": "there was no time left"}}


def test_what_the_model_warns_of_stands_beside_the_number() -> None:
    def measure_one(bench: Bench) -> dict[str, Any]:
        logging.getLogger("model.step.executors.graphs").warning("no graph of %d sequences", 8)
        return {"value": 1.0, "unit": "tok/s"}

    results: Results = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "ROWS", (Row("a", "bf16", measure_one),))
        here(Bench(QUICK, CPU, {}), ["a"], results.__setitem__)
    assert results == {"a": {"value": 1.0, "unit": "tok/s", "warnings": ["no graph of 8 sequences"]}}


def test_what_would_not_fit_into_the_budget_is_left_out() -> None:
    requested: list[str] = []

    def run(group: str, names: Sequence[str], seconds: float) -> Results:
        requested.append(group)
        return {name: {"value": 1.0} for name in names}

    budget = float(max(SECONDS["ceilings"], SECONDS["fp8"]) + 1)
    (*_, found) = measure(ROWS, run, budget)
    assert requested == [group for group, seconds in SECONDS.items() if seconds < budget]
    assert f"{SECONDS['bf16']} s would be needed" in found["decode 64"]["failed"]
    assert set(found) == {row.name for row in ROWS}
    assert sum(SECONDS[group] for group in {row.group for row in gpu.choose("")}) < 590


def test_the_command_needs_no_service(tmp_path: Path) -> None:
    """The command measures the ceilings in processes of its own. They cannot import the packages of the service."""
    (tmp_path / "sitecustomize.py").write_text(uninstalled(*NOT_THERE))
    file = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--quick",
        "--device",
        "cpu",
        "--only",
        "none of these",
        "--option",
        "attention=sdpa",
    ]
    done = subprocess.run(
        [*command, "--output", str(file)],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert COPY in done.stdout
    report = json.loads(file.read_text())
    assert [made["row"] for made in report["rows"]] == [COPY, PRODUCT, CHECK]
    assert report["versions"]["torch"] == torch.__version__


def test_rows_are_chosen_by_parts_of_their_names() -> None:
    names = {only: [row.name for row in gpu.choose(only)][3:] for only in ("", "decode 64 int4,prefill", "start")}
    assert len(names[""]) == len(ROWS) - 4
    assert names["decode 64 int4,prefill"] == ["prefill 8k", "decode 64 int4"]
    assert names["start"] == ["start 7b"]


def test_options_of_the_runner() -> None:
    given = ["attention=sdpa", "deterministic=true", "cache_memory=1024"]
    assert gpu._options(given) == {"attention": "sdpa", "deterministic": True, "cache_memory": 1024}


def test_results_of_a_gpu_are_stored_by_its_name() -> None:
    assert gpu._slug("NVIDIA H200") == "nvidia-h200"
