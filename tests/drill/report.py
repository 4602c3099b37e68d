"""The drill's table: on a terminal, and as docs/drill.md with date and machine."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.drill.row import Result

PAGE = Path(__file__).parents[2] / "docs" / "drill.md"
COLUMNS = ("fault", "promise", "seen", "verdict")
STYLES = {"holds": "green", "broken": "bold red", "not possible here": "yellow"}
INTRODUCTION = """# The drill

`make drill` starts a real server and applies every attack and every fault that Noria promises to survive. Meanwhile
a canary compares answers with those given alone, and a process of its own asks `/live` every 20 ms. This page is the
output of the last complete run.

Each row on a running server promises three more things. The service process grows by at most 64 MiB, unless the row
says otherwise. No good request gets a 4xx. Afterwards everything is at rest: no request runs or waits, no page is
held, no process is left, and descriptors, threads and memory are back near the start.
"""


def machine() -> str:
    """Cores, processor, memory and versions, in one line."""
    text = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, torch {version('torch')}"
    return f"{os.cpu_count()} cores ({next(iter(models), platform.machine())}), {memory:.0f} GiB, {system}"


def headline(results: list[Result], seconds: float) -> str:
    """How many promises hold, and the slowest answer of `/live`."""
    numbers = {name: sum(result.verdict == name for result in results) for name in STYLES}
    live = max((result.live for result in results if result.live is not None), default=0.0)
    counted = ", ".join(f"{n} {name}" for name, n in numbers.items())
    return f"{len(results)} rows: {counted}; slowest `/live` {1000 * live:.0f} ms; {seconds / 60:.0f} minutes"


def show(console: Console, results: list[Result]) -> None:
    table = Table(*COLUMNS, show_lines=True)
    for result in results:
        table.add_row(result.row.fault, str(result.row), result.summary, result.verdict, style=STYLES[result.verdict])
    console.print(table)


def page(results: dict[str, list[Result]], seconds: float) -> str:
    """The document: a table for each family of faults, with the slowest answer of `/live` in the family."""
    every = [result for family in results.values() for result in family]
    parts = [INTRODUCTION, f"{datetime.now(UTC):%d %B %Y}, {machine()}: {headline(every, seconds)}.\n"]
    for family, found in results.items():
        live = [result.live for result in found if result.live is not None]
        parts.append(f"## {family}\n")
        parts += [f"Slowest answer of `/live`: {1000 * max(live):.0f} ms.\n"] if live else []
        parts.append("\n".join([_line(COLUMNS), "|---" * len(COLUMNS) + "|", *map(_row, found)]) + "\n")
    return "\n".join(parts)


def _row(result: Result) -> str:
    return _line((result.row.fault, str(result.row), result.summary, result.verdict))


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
