"""The memory of the service and of the processes below it. Where the system has no /proc there is none."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

KINDS = {"anonymous": "RssAnon", "swapped": "VmSwap", "file": "RssFile"}
"""Kinds of memory, and their names in /proc/PID/status."""
PROCESSES = re.compile(r"noria-(zygote|engine|rank|grammar|images|audio)")
"""What the processes call themselves."""


def memory_by_process() -> Counter[tuple[str, str]]:
    """Return the bytes by process and kind. Engines, and ranks, count together; shared pages in each process."""
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
