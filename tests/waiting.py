"""Waiting for other threads and processes, and signals that have had their effect."""

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
"""Seconds until a test gives up: far more than anything takes, also on a busy machine."""


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until `condition()` holds, at most `patience` seconds. Whoever waits long looks less often."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < patience, f"never happened: {what}"
        time.sleep(min(0.1, 0.01 + waited / 20))


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
    except (FileNotFoundError, ProcessLookupError):  # the latter if its exit code is read between opening and reading
        return True


def halted(pid: int) -> bool:
    """Whether no thread of a process runs any more: a signal has ended or stopped them all."""
    try:
        tasks = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread ended between the listing and the reading
        return not Path(f"/proc/{pid}").exists()
    return all(state in "ZXTt" for state in tasks)


def strike(pid: int, number: int) -> None:
    """Send a signal that ends or stops a process, and wait until it has: until then the process could still answer."""
    os.kill(pid, number)
    eventually(lambda: halted(pid), "the signal has ended or stopped the process")
