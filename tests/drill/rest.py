"""What a server holds when nothing runs, and whether it has come back to that."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.drill.processes import counts, tree, zombies
from tests.drill.row import MIB, UNEXPECTED
from tests.drill.target import CACHE_BYTES, Target
from tests.drill.wire import fetch

SETTLE_SECONDS = 12.0
MORE_DESCRIPTORS, MORE_THREADS = 6, 8
"""What the service may hold more than at the start of a row: lazily started threads, a connection of the drill."""
MORE_MEMORY = CACHE_BYTES + 192 * MIB
"""Of all processes, against the server's start: the KV cache fills only while it is used."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Descriptors, threads and processes of the service, and the memory of its processes in bytes."""

    descriptors: int
    threads: int
    processes: Counter[str]
    memory: int

    @classmethod
    def of(cls, target: Target) -> "Rest":
        found = tree(target.pid)
        service = found[0]
        memory = sum(process.memory for process in found)
        return cls(service.descriptors, service.status("Threads"), counts(found), memory)


def gauges(target: Target) -> dict[str, float]:
    """The gauges that are zero at rest, of all models together: requests that run or wait, and held pages."""
    response = fetch("GET", target.url + "/metrics", headers=target.headers, timeout=10).raise_for_status()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            held = sample.name == "noria_kv_pages" and sample.labels["state"] == "held"
            if held or sample.name in ("noria_requests_running", "noria_requests_waiting"):
                name = sample.name.removeprefix("noria_") + (" held" if held else "")
                found[name] = found.get(name, 0.0) + sample.value
    return found


def unrest(target: Target, before: Rest, start: Rest) -> list[str]:
    """What is not at rest: compared with the row's beginning, and for memory with the server's start."""
    now = Rest.of(target)
    found = [f"{name}: {value:g}" for name, value in gauges(target).items() if value]
    if now.descriptors > before.descriptors + MORE_DESCRIPTORS:
        found.append(f"{now.descriptors} descriptors, {before.descriptors} before")
    if now.threads > before.threads + MORE_THREADS:
        found.append(f"{now.threads} threads, {before.threads} before")
    found += [f"{n} processes of kind {kind}" for kind, n in now.processes.items() if n > 1]
    if n_zombies := zombies(target.pid):
        found.append(f"{n_zombies} zombies")
    if now.memory > start.memory + MORE_MEMORY:
        found.append(f"memory {now.memory // MIB} MiB, {start.memory // MIB} MiB at the start")
    return found


def wait_for_rest(target: Target, before: Rest, start: Rest) -> list[str]:
    """Wait until the server is at rest; what still is not after some seconds."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            found = unrest(target, before, start)
        except UNEXPECTED as error:
            found = [f"the server cannot be asked whether it is at rest ({type(error).__name__})"]
        if not found or time.monotonic() > deadline:
            return [f"not at rest: {', '.join(found)}"] if found else []
        time.sleep(0.25)


class Peak:
    """The largest memory of the service process while the block runs, in bytes beyond its beginning."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._first = self._now()
        self.growth = 0

    def _now(self) -> int:
        found: list[Any] = tree(self._pid)[:1]
        return found[0].status("VmRSS") if found else 0

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.growth = max(self.growth, self._now() - self._first)


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    peak = Peak(pid)
    thread = threading.Thread(target=peak._watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        peak._stop.set()
        thread.join()
