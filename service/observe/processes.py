"""The memory of the service and of the processes below it. Where the system has no /proc there is none."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

KINDS = {"anonymous": "RssAnon", "swapped": "VmSwap", "file": "RssFile"}
"""Kinds of memory, and their names in /proc/PID/status."""
PROCESSES = re.compile(r"noria-(zygote|engine|rank|grammar|images|audio)")
"""What the processes call themselves."""


class ProcessesCollector:
    """The memory by kind of process. Engines, and ranks, count together. Pages that two processes share count twice."""

    def __init__(self) -> None:
        self._read: Counter[tuple[str, str]] | None = None

    def read(self) -> None:
        """Read for the next `collect`, on any thread: many threads of many processes take milliseconds."""
        self._read = memory_by_process()

    def collect(self) -> Iterator[Metric]:
        about = "Memory by kind of process; what processes share counts in each of them."
        family = GaugeMetricFamily("noria_process_memory_bytes", about, labels=["process", "kind"])
        found, self._read = self._read or memory_by_process(), None
        for labels, n_bytes in found.items():
            family.add_metric(labels, n_bytes)
        yield family


def memory_by_process() -> Counter[tuple[str, str]]:
    """Return the bytes by process and kind."""
    total: Counter[tuple[str, str]] = Counter()
    for pid, status in _tree(os.getpid()):
        named = PROCESSES.match(_value("Name", status))
        process = "service" if pid == os.getpid() else named[1] if named else "other"
        for kind, name in KINDS.items():
            total[process, kind] += 1024 * int(_value(name, status).removesuffix(" kB") or 0)
    return total


def _tree(pid: int) -> Iterator[tuple[int, str]]:
    """Yield a process and all below it, with what /proc says of them."""
    with suppress(OSError):  # it has ended
        yield pid, Path(f"/proc/{pid}/status").read_text()
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _value(name: str, status: str) -> str:
    found = re.search(rf"^{name}:\s*(.*)$", status, re.MULTILINE)
    return found[1] if found else ""
