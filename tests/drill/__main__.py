"""`python -m tests.drill [--hours H] [--only NAME]...`: run the drill; exit code 1 if a promise is broken.

Without `--hours` a run takes about ten minutes on two cores; with it the row on leaks at the end lasts H hours.
`--only` runs the rows with NAME in their fault or family. A run of all rows writes docs/drill.md.
"""

import argparse
import resource
import signal
import sys
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.drill import report
from tests.drill.drill import Drill, is_aside
from tests.drill.faults.memory import leaks
from tests.drill.row import LoneRow, Result, Row
from tests.drill.rows import FAMILIES
from tests.drill.soak import soak

MINUTES = 10
LEAST_SOAK_SECONDS = 90.0


def chosen(names: list[str]) -> dict[str, list[Row | LoneRow]]:
    """The rows of each family that have one of the names in them, or all rows."""

    def wanted(family: str, row: Row | LoneRow) -> bool:
        return not names or any(name.lower() in f"{family} {row.fault}".lower() for name in names)

    found = {family: [row for row in rows if wanted(family, row)] for family, rows in FAMILIES.items()}
    return {family: rows for family, rows in found.items() if rows}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make drill", description="Apply every fault and attack to a real server.")
    parser.add_argument("--hours", type=float, default=0.0, help="Look for leaks for so many hours.")
    parser.add_argument(
        "--only", action="append", default=[], help="Run rows with this in fault or family; repeatable."
    )
    parser.add_argument("--list", action="store_true", help="Print the faults and promises, and run nothing.")
    return parser.parse_args()


def run(options: argparse.Namespace, console: Console) -> dict[str, list[Result]]:
    """Run the chosen rows, family by family, and the soak last."""
    begun = time.monotonic()
    families = chosen(options.only)
    every = [row for rows in families.values() for row in rows]
    soaks = not options.only or "soak" in map(str.lower, options.only)
    columns = (TextColumn("{task.completed:.0f}/{task.total:.0f}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(every) + soaks)

        def tell(result: Result) -> None:
            progress.advance(task)
            style = report.STYLES[result.verdict]
            console.print(
                f"[{style}]{result.verdict}[/]  {escape(f'{result.row.fault}: {result.summary}')}", highlight=False
            )
            if result.said is not None:
                console.print(escape(report.explained(result)), highlight=False)

        drill = Drill(tell)
        drill.learn()
        drill.begin_aside(every)
        results = {family: drill.run(rows) for family, rows in families.items()}
        aside = {result.row.fault: result for result in drill.end_aside()}
        for family, rows in families.items():
            results[family] += [aside[row.fault] for row in rows if is_aside(row)]
        if soaks:
            left = 60 * MINUTES - (time.monotonic() - begun)
            results["Soak"] = drill.run([soak(max(LEAST_SOAK_SECONDS, left))])
        drill.leave_stage()
        if options.hours:
            results["Memory"] = [*results.get("Memory", []), *drill.run([leaks(options.hours)])]
    return results


def main() -> int:
    options, console = arguments(), Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what it started is ended, too
    if options.list:
        for family, rows in chosen(options.only).items():
            for row in rows:
                console.print(f"{family}: {row.fault}: {row}", highlight=False, markup=False)
        return 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # an attack holds thousands of connections
    begun = time.monotonic()
    results = run(options, console)
    every = [result for found in results.values() for result in found]
    report.show(console, every)
    console.print(report.headline(every, time.monotonic() - begun), markup=False)
    console.print(report.share(every), markup=False)
    if not options.only:
        report.PAGE.write_text(report.page(results, time.monotonic() - begun))
    return int(any(result.verdict == "broken" for result in every))


if __name__ == "__main__":
    sys.exit(main())
