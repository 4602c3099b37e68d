"""One layout of `benchmarks.parallel`, in a process of its own: rank 0 of a group, or the only one.

Argument: a `Case` as JSON. The last line of the output: the description of the runner and the rows, as JSON.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import streams
from benchmarks.workload import Timing, decode_case, prefill_case
from model import loading
from model.batch import StepBatch, StepOutput
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
    """Tokens/s; bytes of tensors that rank 0 sent in a step; the share of time in which it waited for other ranks.

    `idle` is the share of time in which each rank had nothing to compute. On GPUs the last two are not known.
    """

    speed: float
    step_bytes: float
    waiting: float | None
    idle: list[float] | None


class Reading(NamedTuple):
    """Counters at one moment: seconds, busy seconds of each rank, and of rank 0 what it sent, waited and launched."""

    now: float
    busy: list[float]
    sent: int
    waited: float
    steps: int


class Gauge:
    """Reads what the ranks of this host do, from the system and from rank 0's group."""

    def __init__(self, runner: Any) -> None:
        self._group = runner.group if isinstance(runner, ParallelRunner) else None
        self._on_cpu = runner.info.description["device"] == "cpu"
        self._pids = [os.getpid(), *_children()] if self._group is not None else []
        self._steps, self._launch = 0, runner.launch
        runner.launch = self._counted

    def _counted(self, batch: StepBatch) -> Callable[[], StepOutput]:
        self._steps += 1
        return self._launch(batch)

    def row(self, before: Reading, speed: float) -> Row:
        """What happened since `before`."""
        now = self.read()
        seconds, steps = now.now - before.now, max(1, now.steps - before.steps)
        idle = [max(0.0, 1 - (b - a) / seconds) for a, b in zip(before.busy, now.busy, strict=True)]
        known = self._on_cpu and self._group is not None
        waiting = (now.waited - before.waited) / seconds if known else None
        return Row(speed, (now.sent - before.sent) / steps, waiting, idle if known else None)

    def read(self) -> Reading:
        sent, waited = (self._group.bytes_sent, self._group.seconds_waiting) if self._group is not None else (0, 0.0)
        return Reading(time.perf_counter(), list(map(_busy_seconds, self._pids)), sent, waited, self._steps)


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
