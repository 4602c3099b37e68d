"""Measure the cost of steps on this machine, for `noria simulate`: `python -m benchmarks.costs --out FILE`.

The steps are those of the engine alone. A server of the same model then tells what HTTP adds, where its packages are
installed. The file states the errors of the fit.
"""

import argparse
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import engine, machine
from benchmarks.costs import fit, service, steps
from model.checkpoint.resolve import EMBEDDED
from model.options import STEP_LIMITS
from model.step.runner import ModelRunner
from service.commands.simulate.costs import Costs, Line, to_json


def load(args: argparse.Namespace) -> ModelRunner:
    """The runner as `noria serve` makes it."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    sequences, tokens = STEP_LIMITS[device]
    scheme = {"quantize": args.quantize} if args.quantize else {}
    return engine.load(args.model, device=device, max_sequences=sequences, max_step_tokens=tokens, **scheme)


def flags(args: argparse.Namespace) -> tuple[str, ...]:
    """The flags of `noria serve` for the same runner."""
    device = ("--device", args.device) if args.device else ()
    return (*device, "--quantize", args.quantize) if args.quantize else device


def about(
    runner: ModelRunner, samples: list[fit.Sample], lines: tuple[Line, ...], quantile: float | None
) -> dict[str, Any]:
    """What the file says about its measurement."""
    facts = runner.info.description
    on_gpu = facts["device"] != "cpu"
    described = machine.describe_gpu(torch.device("cuda")) if on_gpu else machine.describe(None)
    where = described["machine"]["device"] if on_gpu else f"{os.cpu_count()} cores, {machine.kind()}"
    return {
        "title": f"measured: {facts['family']}, {int(facts['parameters']) / 1e6:.0f} M parameters, "
        f"{facts['quantize']} on {where}",
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "typical_step": "mean" if quantile is None else f"quantile {quantile}",
        "model": facts,
        **described,
        "relative_error_of_the_fit": fit.stated(lines, samples),
    }


def with_service(costs: Costs, args: argparse.Namespace, console: Console, module: str = "service") -> Costs:
    """The costs with what HTTP adds."""
    with service.server(args.model, flags(args), module) as server:
        added, request = service.measure(server, costs.lines, args.quantile, console.print)
    lines = tuple(
        line._replace(step=line.step + added.step, sequence=line.sequence + added.sequence) for line in costs.lines
    )
    found = {"step": added.step, "sequence": added.sequence, "request": request}
    return replace(costs, lines=lines, request=request, about=costs.about | {"of_them_the_service": found})


def measure(args: argparse.Namespace, console: Console) -> Costs:
    runner = load(args)
    samples = fit.grouped(steps.measure(runner, args.rounds, 0, console.print), args.quantile)
    lines = fit.fit(samples)
    costs = Costs(about(runner, samples, lines, args.quantile), lines, 0.0, runner.info)
    console.print(costs.about["relative_error_of_the_fit"], *lines)
    del runner
    return costs if args.no_service else with_service(costs, args, console)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", nargs="?", default=EMBEDDED)
    made.add_argument("--device", choices=STEP_LIMITS, help="default: a GPU if there is one")
    made.add_argument("--quantize", help="scheme, as for noria serve")
    made.add_argument("--rounds", type=int, default=3, help="how often each shape is measured (3)")
    made.add_argument(
        "--quantile",
        type=float,
        help="quantile of equal steps that counts, instead of their mean; 0.1 leaves out what other programs cost",
    )
    made.add_argument("--no-service", action="store_true", help="leave out what HTTP adds")
    return made


def main() -> None:
    made = parser()
    made.add_argument("--out", type=Path, required=True, help="file to write")
    args = made.parse_args()
    costs = measure(args, Console())
    args.out.write_text(json.dumps(to_json(costs), indent=1) + "\n")


if __name__ == "__main__":
    main()
