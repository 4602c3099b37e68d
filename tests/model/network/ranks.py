"""Ranks for tests: processes that compute a model together. They start once and serve many cases."""

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

PATIENCE = 30.0
"""Seconds until a rank must have answered."""


class Task(NamedTuple):
    """A call of `function` with the group of a rank; `meeting` is a file where the ranks of this layout meet."""

    layout: Layout
    meeting: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    deterministic: bool


@dataclass
class Ranks:
    """Processes, `most` of them: a layout of fewer ranks uses the first ones. `run` raises what a rank raised.

    They meet over gloo on a CPU, and over nccl on GPUs, each on its own.
    """

    most: int = 4
    kind: str = "cpu"
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))
    _numbers: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        # A fork server imports torch once for all ranks. They fork from it before any thread has started.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "tests.model.network.rank_cases"])
        pipes = [context.Pipe() for _ in range(self.most)]
        self._ends = [own for own, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(rank, self.kind, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(
        self, layout: Layout, function: Callable[..., Any], *arguments: Any, deterministic: bool = False
    ) -> list[Any]:
        """What `function`(group, *arguments) returns on each rank of the layout."""
        task = Task(layout, self.directory / str(next(self._numbers)), function, arguments, deterministic)
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


def _serve(rank: int, kind: str, end: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)

    torch.set_num_threads(1)
    native.use_threads(1)
    while True:
        task: Task = end.recv()
        try:
            end.send(_run(rank, device, task))
        except Exception:
            end.send(Failed(traceback.format_exc()))


def _run(rank: int, device: torch.device, task: Task) -> Any:
    backend, meeting = "nccl" if device.type == "cuda" else "gloo", f"file://{task.meeting}"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=task.layout.size)
    try:
        group = Group(task.layout.place(rank), device, deterministic=task.deterministic)
        result = task.function(group, *task.arguments)
        dist.barrier()  # a group that ends, ends its sends
        return result
    finally:
        dist.destroy_process_group()
