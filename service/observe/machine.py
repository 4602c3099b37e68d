"""What the system tells: memory of processes, pressure (PSI), the control group of this process, and descriptors."""

import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from service.observe.processes import memory_by_process

GROUPS = Path("/sys/fs/cgroup")
PRESSURE = re.compile(r"^(some|full) avg10=(\S+) .*total=(\d+)$", re.MULTILINE)
NUMBERS = (
    ("memory_current", "memory", "memory.current", "", 1.0),
    ("memory_current", "memory", "memory.usage_in_bytes", "", 1.0),
    ("memory_max", "memory", "memory.max", "", 1.0),
    ("memory_max", "memory", "memory.limit_in_bytes", "", 1.0),
    ("at_memory_max", "memory", "memory.events", "max ", 1.0),
    ("oom_kill", "memory", "memory.events", "oom_kill ", 1.0),
    ("oom_kill", "memory", "memory.oom_control", "oom_kill ", 1.0),
    ("pids_current", "pids", "pids.current", "", 1.0),
    ("pids_max", "pids", "pids.max", "", 1.0),
    ("throttled", "cpu", "cpu.stat", "throttled_usec ", 1e-6),
    ("throttled", "cpu", "cpu.stat", "throttled_time ", 1e-9),
    ("host_oom_kill", "", "/proc/vmstat", "oom_kill ", 1.0),
)
"""Fact, controller, file of a control group of version 2 or 1, what is before the number in the file, and its unit."""
COUNTED = re.compile(r"at_memory_max|.*oom_kill|throttled|.*_seconds")


def machine_facts() -> dict[str, float]:
    """Return the facts by name. `cpu_some` is the part of ten seconds, in percent, in which a task waited for it."""
    facts: dict[str, float] = {}
    for name in ("cpu", "memory", "io"):
        for kind, percent, total in PRESSURE.findall(_text(Path(f"/proc/pressure/{name}"))):
            facts |= {f"{name}_{kind}": float(percent), f"{name}_{kind}_seconds": int(total) / 1e6}
    groups = {"": GROUPS}
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        places = ((name, GROUPS / name) for name in controllers.split(","))
        groups |= {name: own if (own := place / path.lstrip("/")).is_dir() else place for name, place in places}
    for name, controller, file, before, unit in NUMBERS:
        text = _text(groups.get(controller, groups[""]) / file)
        if match := re.search(rf"^{before}(\d+)$", text, re.MULTILINE):
            facts[name] = unit * int(match[1])
    if "pids_max" in facts:
        facts["pids_left"] = facts["pids_max"] - facts.get("pids_current", 0.0)
    limit = facts["descriptors"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError):  # none is left to look
        facts["descriptors"] = len([*Path("/proc/self/fd").iterdir()])
    return {**facts, "descriptors_left": limit - facts["descriptors"]}


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


class SystemCollector:
    """These facts for Prometheus, as the recorder has read them a moment ago."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Read all facts, on any thread: many threads of many processes take milliseconds."""
        self._latest = {**machine_facts(), "memory": {"_".join(it): n for it, n in memory_by_process().items()}}
        return self._latest

    def collect(self) -> Iterator[Metric]:
        facts = dict(self._latest or self.read())
        about = "Memory by kind of process; what processes share counts in each of them."
        memory = GaugeMetricFamily("noria_process_memory_bytes", about, labels=["process", "kind"])
        for name, n_bytes in facts.pop("memory").items():
            memory.add_metric(name.split("_"), n_bytes)
        about = "of the system: its control group, waits for resources (PSI), descriptors."
        counts = CounterMetricFamily("noria_machine", f"Counts {about}", labels=["fact"])
        states = GaugeMetricFamily("noria_machine_state", f"Facts {about}", labels=["fact"])
        for name, value in facts.items():
            (counts if COUNTED.fullmatch(name) else states).add_metric([name], value)
        yield from (memory, counts, states)
