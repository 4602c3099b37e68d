"""Noria's engine on one GPU against the limits of that GPU: `python -m benchmarks.gpu`, under ten minutes on an H200.

It needs torch and this repository. If transformers is installed, it is measured too. The first group measures the two
ceilings (a copy within the device's memory, a large matrix product) and checks the default attention. Then every row is
measured, with random weights that are made on the device. A row's floor is the least that its step must read or
compute, at these ceilings. Each group of rows runs in its own process. If a row fails, the table says why, and the
other rows are still measured.

    --only "decode 64,prefill"   rows whose name contains one of these (always with the ceilings)
    --budget 590                 seconds for everything: groups that no longer fit are left out
    --option attention=sdpa      an option of Noria's runner, for all rows; repeat for more options
    --quick                      small shapes, to test the benchmark on any machine: its numbers have no meaning

`--only start` measures the time from a 7B checkpoint in the page cache to readiness. Other runs leave it out.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu.bench import Bench, Measured, Row
from benchmarks.gpu.engine import warnings_of_the_model
from benchmarks.gpu.rows import CHECK, COPY, PRODUCT, ROWS, SECONDS
from benchmarks.gpu.shapes import FULL, QUICK

RESULTS = machine.ROOT / "benchmarks" / "results"
PATIENCE = 3
"""A group that takes longer than this many times its expected time counts as hung."""
ROUNDED = 2**20
"""Bytes that do not count as growth, because an allocator rounds."""
SAID_CHARS, TRACE_CHARS = 600, 4000

Results = dict[str, Measured]
"""The measurements by row; {"failed": why} for a row without any."""
Run = Callable[[str, Sequence[str], float], Results]
"""Measures rows of a group, within so many seconds."""


def here(bench: Bench, names: Sequence[str], emit: Callable[[str, Measured], None]) -> None:
    """Measure rows, one after the other, until one fails: what it leaves on the device may spoil the next."""
    for row in ROWS:
        if row.name in names:
            try:
                with warnings_of_the_model() as warnings:
                    measured = row.measure(bench)
                emit(row.name, measured | ({"warnings": warnings} if warnings else {}))
            except Exception as error:
                failure = f"{type(error).__name__}: {str(error).strip()[:SAID_CHARS]}"
                emit(row.name, {"failed": failure, "where": traceback.format_exc()[-TRACE_CHARS:]})
                return


@dataclass(frozen=True)
class Processes:
    """A `Run` in a child process; after a row that fails, a new process measures the rows after it."""

    flags: Sequence[str]

    def __call__(self, group: str, names: Sequence[str], seconds: float) -> Results:
        found: Results = {}
        end = time.monotonic() + seconds
        while left := [name for name in names if name not in found]:
            before, why = len(found), "there was no time left"
            if time.monotonic() < end:
                measured, why = self._child(left, end)
                found |= measured
            if len(found) == before:  # it ended within its first row
                found[left[0]] = {"failed": why}
        return found

    def _child(self, names: list[str], end: float) -> tuple[Results, str]:
        """The measurements of a process, and how it ended."""
        command = [sys.executable, "-m", "benchmarks.gpu", *self.flags, "--child", json.dumps(names)]
        with tempfile.NamedTemporaryFile() as answers, tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                [*command, answers.name], stdout=output, stderr=output, cwd=machine.ROOT, start_new_session=True
            )
            try:
                why = f"its process ended with {child.wait(timeout=end - time.monotonic())}"
            except subprocess.TimeoutExpired:
                why = "it took too long"
            finally:
                _kill(child)
            output.seek(max(0, output.seek(0, os.SEEK_END) - SAID_CHARS))
            tail = output.read().decode(errors="replace").strip()
            lines = Path(answers.name).read_text().splitlines()
        return dict(map(json.loads, lines)), f"{why}; it said: {tail}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the process and the processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def measure(chosen: Sequence[Row], run: Run, budget: float) -> Iterator[Results]:
    """All measurements so far, after each group."""
    end = time.monotonic() + budget
    found: Results = {}
    for group in dict.fromkeys(row.group for row in chosen):
        names = [row.name for row in chosen if row.group == group]
        left = end - time.monotonic()
        if left < SECONDS[group]:
            why = f"left out: {left:.0f} of {budget:.0f} s were left, {SECONDS[group]} s would be needed"
            found |= {name: {"failed": why} for name in names}
        else:
            found |= run(group, names, min(left, PATIENCE * SECONDS[group]))
        yield found


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row of the table. `share` is its part of the floor's speed; `met` says whether its goals are met."""

    row: Row
    measured: Measured
    floor: float | None = None
    share: float | None = None
    ratio: float | None = None
    met: bool | None = None

    @property
    def cells(self) -> list[str]:
        if "failed" in self.measured:
            return [self.row.name, "-", "", "", goal(self.row), "", self.measured["failed"].partition("\n")[0]]
        unit = self.measured["unit"]
        met = {True: "yes", False: "NO", None: ""}[self.met]
        floor = "" if self.floor is None else show(self.floor, unit)
        share = "" if self.share is None else f"{self.share:.1%}"
        beside = "" if self.ratio is None else f"{self.ratio:.2f} x {self.row.beside}"
        beside = ", ".join(filter(None, (beside, self.measured.get("note", ""))))
        return [self.row.name, show(self.measured["value"], unit), floor, share, goal(self.row), met, beside]

    def to_json(self) -> dict[str, Any]:
        found = {"row": self.row.name, "goal": goal(self.row), "floor": self.floor, "share": self.share}
        return found | {"ratio": self.ratio, "met": self.met, **self.measured}


def goal(row: Row) -> str:
    """The goals of a row in words."""
    least, greatest = row.between
    parts = [] if row.goal is None else [f">= {row.goal:.0%}"]
    parts += [] if row.limit is None else [f"<= {row.limit:g}"]
    parts += [f">= {least:g} x {row.beside}"] if least else []
    parts += [f"< {greatest:g} x {row.beside}"] if greatest < math.inf else []
    return ", ".join(parts)


def show(value: float, unit: str) -> str:
    """A value with its unit, such as "4.30 TB/s"."""
    scale, name = next(((scale, name) for scale, name in ((1e12, "T"), (1e9, "G")) if value >= scale), (1.0, ""))
    return f"{value / scale:,.{0 if value / scale >= 1000 else 1 if value / scale >= 10 else 3}f} {name}{unit}"


def judge(row: Row, found: Results) -> Verdict:
    """The verdict on a row: against its floor at the measured ceilings, and against the row `beside`."""
    measured = found.get(row.name, {"failed": "left out: the run was cut"})
    if "failed" in measured:
        return Verdict(row, measured)
    value, floor = measured["value"], _floor(measured, found)
    share = None if floor is None else value / floor
    other = found.get(row.beside or "", {}).get("value")
    ratio = None if other is None else value / other
    goals = []
    if row.limit is not None:
        goals.append(
            value <= row.limit and not measured.get("pages_grown") and measured.get("bytes_grown", 0) < ROUNDED
        )
    if row.goal is not None and share is not None:
        goals.append(share >= row.goal)
    if ratio is not None and row.between != (0.0, math.inf):
        goals.append(row.between[0] <= ratio < row.between[1])
    return Verdict(row, measured, floor, share, ratio, all(goals) if goals else None)


def _floor(measured: Measured, found: Results) -> float | None:
    """Units a second, if only the ceilings limited the speed."""
    seconds = [
        measured[kind] / found[ceiling]["value"]
        for kind, ceiling in (("bytes", COPY), ("flops", PRODUCT))
        if kind in measured and "value" in found.get(ceiling, {})
    ]
    return measured["units"] / max(seconds) if seconds else None


HEADINGS = ["", "measured", "floor", "of floor", "goal", "met", ""]


def table(verdicts: Sequence[Verdict]) -> str:
    lines = [HEADINGS, *(verdict.cells for verdict in verdicts)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS) - 1)]
    return "\n".join("  ".join([*map(_cell, range(len(widths)), widths, line), line[-1]]).rstrip() for line in lines)


def _cell(column: int, width: int, text: str) -> str:
    return text.rjust(width) if 0 < column < 4 else text.ljust(width)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--budget", type=float, default=590.0)
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of model.options.RunnerOptions")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="JSON file in place of benchmarks/results/DATE-GPU.json")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    device = torch.device(args.device)
    if args.child is not None:
        names, file = args.child
        _answer(names, file, Bench(QUICK if args.quick else FULL, device, _options(args.option)))
        return
    if device.type == "cpu" and not args.quick:
        raise SystemExit("there is no CUDA device: --quick tries the benchmark out on a CPU")
    chosen = list(choose(args.only))
    started = datetime.now(UTC)
    about = {"started": started.isoformat(timespec="seconds"), "quick": args.quick, "budget": args.budget}
    about["options"] = _options(args.option)
    about |= machine.describe_gpu(device)
    file = args.output or (
        None if args.quick else RESULTS / f"{started:%Y-%m-%d}-{_slug(about['machine']['device'])}.json"
    )
    options = [text for option in args.option for text in ("--option", option)]
    run = Processes(["--device", device.type, *(["--quick"] if args.quick else []), *options])
    verdicts = [Verdict(row, {"failed": "left out"}) for row in chosen]
    for found in measure(chosen, run, args.budget):
        verdicts = [judge(row, found) for row in chosen]
        report = about | {"rows": [verdict.to_json() for verdict in verdicts]}
        report["seconds"] = (datetime.now(UTC) - started).total_seconds()
        if file is not None:
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(about, indent=1))
    print(table(verdicts))
    for verdict in verdicts:
        if "\n" in verdict.measured.get("failed", ""):
            print(f"\n{verdict.row.name}: {verdict.measured['failed']}")
        for warning in dict.fromkeys(verdict.measured.get("warnings", ())):
            print(f"\n{verdict.row.name}, warning: {warning}")
    raise SystemExit(int(any("failed" in found.get(name, {}) for name in (COPY, PRODUCT, CHECK))))


def choose(only: str) -> Iterator[Row]:
    """The rows whose name contains one of the parts, and the ceilings."""
    for row in ROWS:
        named = any(part in row.name for part in only.split(",") if part or not row.only_by_name)
        if named or row.group == "ceilings":
            yield row


def _answer(names: str, file: str, bench: Bench) -> None:
    with Path(file).open("a") as answers:

        def emit(name: str, measured: Measured) -> None:
            print(json.dumps([name, measured]), file=answers, flush=True)

        here(bench, json.loads(names), emit)


def _options(given: Sequence[str]) -> dict[str, Any]:
    """The value of a JSON number or literal; any other text is itself."""
    options: dict[str, Any] = {}
    for option in given:
        name, _, text = option.partition("=")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    main()
