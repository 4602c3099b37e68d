"""Ranks that share a model, side by side with one process: `python -m benchmarks.parallel [--quick]`.

The model has a 7B's shape cut to 8 layers, and random weights. On a CPU all layouts use the same cores: one process
with a thread for each core, against two ranks that have half of them each. On GPUs they are one device, 2 and 4.

    tokens/s      of prompts alone, and of streams that decode together
    idle          the share of time in which each rank has nothing to compute
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine, random_weights
from benchmarks.gpu.shapes import MISTRAL_7B
from benchmarks.ranks import Case, argument

FULL = replace(MISTRAL_7B, n_layers=8, windows=(4096,) * 8, max_position=4096)
QUICK = replace(
    FULL, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=128, vocab_size=512, windows=(4096,) * 2
)
Found = Mapping[str, Any]


def layouts(device: str, cores: int) -> dict[str, dict[str, Any]]:
    """The options of each layout, by its name."""
    devices = torch.cuda.device_count() if device == "cuda" else 2
    found: dict[str, dict[str, Any]] = {"one process": {"threads": cores}}
    for n in (2, 4):
        if n <= devices:
            found[f"tensor {n}"] = {"tensor_parallel_size": n, "threads": max(1, cores // n)}
            found[f"pipeline {n}"] = {"pipeline_parallel_size": n, "threads": max(1, cores // n)}
    return found


def cases(args: argparse.Namespace, model: Path) -> Iterator[tuple[str, Case]]:
    for name, options in layouts(args.device, len(os.sched_getaffinity(0))).items():
        if args.only and name not in args.only.split(","):
            continue
        common = {"model": str(model), "device": args.device, "quantize": args.quantize, "max_model_len": 1024}
        limits = {"max_sequences": 64, "max_step_tokens": 512}
        sizes: dict[str, Any] = {"prefill": (128, 512), "streams": (1, 8, 32), "tokens": args.tokens}
        if args.quick:
            sizes = {"prefill": (16,), "streams": (2,), "tokens": 8}
        yield name, Case({**common, **limits, **options}, **sizes)


def measure(case: Case) -> Found:
    """Run a case in a process of its own, whose errors are shown."""
    command = [sys.executable, "-m", "benchmarks.ranks", argument(case)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # rank 0 forks the others, while it has one thread
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=machine.ROOT, env=environment)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def table(name: str, found: Found) -> Table:
    result = Table(name, "tokens/s", "idle")
    for what, row in found["rows"].items():
        result.add_row(what, f"{row['speed']:.1f}", percents(row["idle"]))
    return result


def percents(shares: list[float] | None) -> str:
    """The percentages of several ranks, or the only one if all have the same."""
    known = [f"{100 * share:.0f}" for share in shares or ()]
    return " ".join(known[:1] if len(set(known)) == 1 else known) + " %" if known else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quantize", default="int8", help="weight scheme")
    parser.add_argument("--tokens", type=int, default=24, help="tokens that each stream generates")
    parser.add_argument("--only", help='layouts to measure, comma-separated, such as "pipeline 2"')
    parser.add_argument("--quick", action="store_true", help="a tiny model: tests the benchmark, measures nothing")
    parser.add_argument("--output", type=Path, help="file for the results, as JSON")
    args = parser.parse_args()
    console, found = Console(width=None if Console().is_terminal else 120), {}
    with tempfile.TemporaryDirectory() as directory, console.status("weights") as status:
        random_weights.save(QUICK if args.quick else FULL, torch.device("cpu"), Path(directory))
        for name, case in cases(args, Path(directory)):
            status.update(name)
            found[name] = measure(case)
            console.print(table(name, found[name]))
            console.print(f"load average {' '.join(f'{value:.1f}' for value in os.getloadavg())}")
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
