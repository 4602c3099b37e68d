"""One layout of `benchmarks.parallel`, in a process of its own: rank 0 of a group, or the only one.

Argument: a `Case` as JSON. The last line of the output: the description of the runner and the rows, as JSON.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import streams
from benchmarks.workload import Timing, decode_case, prefill_case
from model import loading
from model.options import RunnerOptions
from model.ranks import start
from model.ranks.runner import ParallelRunner
from service.engine.scheduling.scheduler import Scheduler

REPEATS = 3
"""Prompts that are computed alone, one after the other, for a speed."""


@dataclass(frozen=True, slots=True)
class Case:
    """The runner's options, the lengths of prompts, and the numbers of streams with `tokens` tokens each."""

    options: Mapping[str, Any]
    prefill: tuple[int, ...]
    streams: tuple[int, ...]
    tokens: int


class Row(NamedTuple):
    """Tokens/s, and the share of time in which each rank had nothing to compute; None where that is not known."""

    speed: float
    idle: list[float] | None


class Reading(NamedTuple):
    """Counters at one moment: seconds, and busy seconds of each rank."""

    now: float
    busy: list[float]


class Gauge:
    """Reads from the system what the ranks of this host do."""

    def __init__(self, runner: Any) -> None:
        known = isinstance(runner, ParallelRunner) and runner.info.description["device"] == "cpu"
        self._pids = [os.getpid(), *_children()] if known else []

    def row(self, before: Reading, speed: float) -> Row:
        """What happened since `before`."""
        now = self.read()
        seconds = now.now - before.now
        idle = [max(0.0, 1 - (b - a) / seconds) for a, b in zip(before.busy, now.busy, strict=True)]
        return Row(speed, idle or None)

    def read(self) -> Reading:
        return Reading(time.perf_counter(), list(map(_busy_seconds, self._pids)))


def _children() -> list[int]:
    """The processes of the other ranks, in their order."""
    tasks = Path("/proc/self/task").iterdir()
    children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    names = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in children}
    ranks = {int(name.rpartition("-")[2]): pid for name, pid in names.items() if name.startswith("noria-rank-")}
    return [ranks[rank] for rank in sorted(ranks)]


def _busy_seconds(pid: int) -> float:
    """Seconds in which the main thread of a process, which computes, did so, or other programs had its processor."""
    computed, delayed, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return (int(computed) + int(delayed)) / 1e9


class Bench:
    """Measures one runner."""

    def __init__(self, runner: Any, case: Case) -> None:
        self._runner, self._case, self._gauge = runner, case, Gauge(runner)

    def rows(self) -> Iterator[tuple[str, Row]]:
        self._generate(1, self._case.prefill[0], 2)  # warms up
        for length in self._case.prefill:
            yield prefill_case(length), self.prefill(length)
        for n in self._case.streams:
            yield decode_case(n), self.decode(n)

    def prefill(self, length: int) -> Row:
        before = self._gauge.read()
        seconds = sum(self._generate(1, length, 1).first for _ in range(REPEATS))
        return self._gauge.row(before, REPEATS * length / seconds)

    def decode(self, n: int) -> Row:
        before = self._gauge.read()
        timing = self._generate(n, 1, self._case.tokens)
        return self._gauge.row(before, timing.tokens / timing.seconds)

    def _generate(self, n: int, length: int, n_tokens: int) -> Timing:
        info = self._runner.info
        prompts = [random.choices(range(100, info.vocab_size - 100), k=length) for _ in range(n)]
        scheduler = Scheduler(info, max_sequences=n, max_step_tokens=info.max_step_tokens)
        return streams.generate(self._runner, scheduler, prompts, n_tokens)


def main() -> None:
    case = Case(**json.loads(sys.argv[1]))
    n_ranks = RunnerOptions(**case.options).layout.size
    create = start.starter(str(n_ranks)) if n_ranks > 1 else loading.create
    runner = create(lambda stage, done: None, **case.options)
    rows = {name: row._asdict() for name, row in Bench(runner, case).rows()}
    print(json.dumps({"description": runner.info.description, "rows": rows}), flush=True)
    os._exit(0)  # the other ranks end with this process; threads of torch.distributed may hang in their end


def argument(case: Case) -> str:
    return json.dumps(asdict(case))


if __name__ == "__main__":
    main()
