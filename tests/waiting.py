"""Waiting for other threads and processes, and whether a process has ended."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
"""Seconds until a test gives up: far more than anything takes, also on a busy machine."""


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


def named(pid: int) -> str:
    """The name of a process, as `ps -o comm` shows it."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def children(pid: int, name: str | None = None) -> list[int]:
    """Process ids of a process's children, or of those with this name."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if name is None or named(child) == name]


def ended(pid: int) -> bool:
    """Whether a process has ended; one whose exit code nobody has read yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
