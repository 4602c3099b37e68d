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

`make drill` starts a real server and applies every fault and attack below to it, one after the other. A canary compares
answers with those given alone, and another process asks `/live` every 20 ms. This page lists the last complete run.

Unless `make drill ARGS=--list` says otherwise, each row on a running server promises: answers equal those given
alone and come within 20 s, or after a fault within 8 s; `/live` answers within 500 ms; the service grows by at most
64 MiB; no good request gets a 4xx; afterwards no request runs, no page is held and no process is left.
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


def explained(result: Result) -> str:
    """What `noria explain` said, and where it was wrong the true cause."""
    assert result.said is not None
    wrong = "" if result.said.right else f" (wrong: the cause is {getattr(result.row, 'cause', '')})"
    return f"       explain: {result.said.sentence}{wrong}"


def share(results: list[Result]) -> str:
    """How many rows `noria explain` explained."""
    said = [result.said for result in results if result.said is not None]
    right = sum(it.right for it in said)
    left_out = sum(not getattr(result.row, "cause", "") for result in results)
    return f"noria explain named the cause of {right} of {len(said)} rows; {left_out} rows have no server left to ask"


def show(console: Console, results: list[Result]) -> None:
    table = Table(*COLUMNS, show_lines=True)
    for result in results:
        table.add_row(result.row.fault, str(result.row), result.summary, result.verdict, style=STYLES[result.verdict])
    console.print(table)


def page(results: dict[str, list[Result]], seconds: float) -> str:
    """The document: the faults of each family, and what was seen where a promise did not hold."""
    every = [result for family in results.values() for result in family]
    parts = [INTRODUCTION, f"{datetime.now(UTC):%d %B %Y}, {machine()}: {headline(every, seconds)}.\n"]
    lines = ["| family | holds |", "|---|---|"]
    for family, found in results.items():
        held = "; ".join(result.row.fault for result in found if result.verdict == "holds")
        lines += [_line((family, held))] if held else []
    parts.append("\n".join(lines) + "\n")
    if told := [result for result in every if result.said is not None]:
        parts += [
            share(every) + ".\n",
            "\n".join(["| fault | `noria explain` | right |", "|---|---|---|", *map(_told, told)]) + "\n",
        ]
    others = [result for result in every if result.verdict != "holds"]
    if others:
        rows = [_line((result.row.fault, str(result.row), result.summary, result.verdict)) for result in others]
        parts.append("\n".join([_line(COLUMNS), "|---" * len(COLUMNS) + "|", *rows]) + "\n")
    return "\n".join(parts)


def _told(result: Result) -> str:
    assert result.said is not None
    return _line((result.row.fault, result.said.sentence, "yes" if result.said.right else "no"))


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
