"""The processes of a server, found by walking /proc from its process id, and what they hold. Linux only."""

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = {
    "model.grammar.process": "follower",
    "model.images.process": "image decoder",
    "model.audio.process": "audio decoder",
}
"""What a child's command line names -> its kind. See `tree` for the trial process, engines and the zygote."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. `kind` is service, zygote, engine, second engine, trial, follower, image
    decoder, audio decoder or other.
    """

    pid: int
    parent: int
    kind: str
    state: str
    started: int

    def status(self, name: str) -> int:
        """A number of /proc/PID/status, in bytes where it has a unit; 0 once the process has ended."""
        found = re.search(rf"^{name}:\s+(\d+)( kB)?", _read(self.pid, "status"), re.MULTILINE)
        return int(found[1]) * (1024 if found[2] else 1) if found else 0

    @property
    def memory(self) -> int:
        """Bytes of its own and its share of common pages (PSS)."""
        found = re.search(r"^Pss:\s+(\d+) kB", _read(self.pid, "smaps_rollup"), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    @property
    def descriptors(self) -> int:
        with contextlib.suppress(OSError):
            return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        return 0


def tree(pid: int) -> list[Process]:
    """The process and all its descendants. Of the engines of two models the younger is the second."""
    found = [_process(pid, "service"), *_descendants(pid)]
    engines = sorted((process for process in found if process and process.kind == "engine"), key=lambda it: it.started)
    second = {process.pid for process in engines[1:]}
    kinds = {
        process.pid: "second engine"
        if process.pid in second
        else "trial"
        if process.kind == "follower" and process.parent == pid
        else process.kind
        for process in found
        if process
    }
    return [
        Process(it.pid, it.parent, kinds[it.pid], it.state, it.started) for it in found if it and it.state not in "ZX"
    ]


def zombies(pid: int) -> int:
    """Descendants that have ended and that nobody has waited for."""
    return sum(process.state == "Z" for process in _descendants(pid))


def counts(processes: list[Process]) -> Counter[str]:
    return Counter(process.kind for process in processes)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants(pid: int) -> Iterator[Process]:
    for number in _children(pid):
        if process := _process(number):
            yield process
            yield from _descendants(number)


def _children(pid: int) -> list[int]:
    """Process ids of the children of all threads of a process."""
    with contextlib.suppress(OSError):
        paths = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for path in paths for child in path.read_text().split()]
    return []


def _process(pid: int, kind: str | None = None) -> Process | None:
    fields = _stat(pid)
    if not fields:
        return None
    name, arguments = _read(pid, "comm").strip(), _read(pid, "cmdline").split("\0")
    named = next((KINDS[argument] for argument in arguments if argument in KINDS), "other")
    if name in ("noria-engine", "noria-zygote"):
        named = name.removeprefix("noria-")
    return Process(pid, int(fields[1]), kind or named, fields[0], int(fields[19]))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, ...; empty once the process is gone."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""
