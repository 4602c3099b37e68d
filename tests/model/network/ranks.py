"""Ranks for tests: processes that compute a model together, over gloo. They start once and serve many cases."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from model.kernels.cpu import native
from model.network.group import Group
from model.sharding.layout import Layout

CPU = torch.device("cpu")
MOST = 4
"""Number of processes. A layout of fewer ranks uses the first of them."""


PATIENCE = 30.0
"""Seconds until a rank must have answered."""


class Task(NamedTuple):
    """A call of `function` with the group of a rank; `meeting` is a file where the ranks of this layout meet."""

    layout: Layout
    meeting: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass
class Ranks:
    """The processes. `run` raises what a rank raised."""

    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))
    _numbers: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        # A fork server imports torch once for all ranks. They fork from it before any thread has started.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "tests.model.network.rank_cases"])
        pipes = [context.Pipe() for _ in range(MOST)]
        self._ends = [own for own, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(rank, theirs), daemon=True) for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, layout: Layout, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function`(group, *arguments) returns on each rank of the layout."""
        task = Task(layout, self.directory / str(next(self._numbers)), function, arguments)
        ends = self._ends[: layout.size]
        for end in ends:
            end.send(task)
        results = [end.recv() if end.poll(PATIENCE) else Failed("no answer") for end in ends]
        for result in results:
            if isinstance(result, Failed):
                raise AssertionError(f"a rank failed:\n{result.trace}")
        return results

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


class Failed(NamedTuple):
    trace: str


def _serve(rank: int, end: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    torch.set_num_threads(1)
    native.use_threads(1)
    while True:
        task: Task = end.recv()
        try:
            end.send(_run(rank, task))
        except Exception:
            end.send(Failed(traceback.format_exc()))


def _run(rank: int, task: Task) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{task.meeting}", rank=rank, world_size=task.layout.size)
    try:
        group = Group(task.layout.place(rank), CPU)
        result = task.function(group, *task.arguments)
        dist.barrier()  # a group that ends, ends its sends
        return result
    finally:
        dist.destroy_process_group()
