"""Rank 0: it starts the other ranks of its host, meets them, and loads its part of the model while they load theirs."""

import logging
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from model import loading
from model.checkpoint.files import Progress
from model.errors import OptionError
from model.machine.child import ending, start_python
from model.options import RunnerOptions
from model.ranks.followers import Followers
from model.ranks.meeting import Host, Joined, difference
from model.ranks.part import Identity, load_part
from model.ranks.progress import LeastProgress
from model.ranks.runner import NO_ADAPTERS, ParallelRunner
from model.ranks.world import World, check_size, from_environment
from model.warming import first_steps

log = logging.getLogger(__name__)


def create(progress: Progress, **options: Any) -> ParallelRunner:
    """Load a model that several ranks share, with `RunnerOptions(**options)`.

    Raises ModelError and OptionError as `loading.create` does, also for what another rank finds.
    """
    chosen = RunnerOptions(**options)
    check(chosen)
    size = chosen.layout.size
    started = from_environment()
    check_size(started, size)
    host = Host(started or World(0, size, 0, size))
    processes = {} if started else dict(_start(host.world))
    least = LeastProgress(progress, size)
    followers = Followers(least)
    progress("starting the ranks", 0.0)
    joined = host.meet(options, partial(_check_alive, processes))
    followers.connect(joined.links, processes)
    with _reporting(followers):
        return _load(chosen, host.world, joined, followers, least)


def check(options: RunnerOptions) -> None:
    """Raise OptionError for what a group of ranks cannot do."""
    loading.check_options(options)
    if options.adapters:
        raise OptionError(f"--lora: {NO_ADAPTERS}")


def _start(world: World) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """All other ranks as children of this process, which die with it. They wait for rank 0's options."""
    for rank in range(1, world.size):
        own = replace(world, rank=rank, local_rank=rank)
        yield rank, start_python("model.ranks", environment=own.variables)


def _check_alive(processes: Mapping[int, "subprocess.Popen[bytes]"]) -> None:
    for rank, process in processes.items():
        if (code := process.poll()) is not None:
            raise OptionError(f"rank {rank} (process {process.pid}) has ended while it started: {ending(code)}")


@contextmanager
def _reporting(followers: Followers) -> Iterator[None]:
    """Where several ranks fail, raise the cause. The others learn of an error of rank 0."""
    try:
        yield
    except Exception as error:
        followers.check()
        followers.send("refused", f"rank 0 could not load the model: {error}")
        raise


def _load(
    options: RunnerOptions, world: World, joined: Joined, followers: Followers, progress: LeastProgress
) -> ParallelRunner:
    def report(stage: str, fraction: float) -> None:
        followers.check()
        progress.note(0, stage, fraction)

    def compare(own: Identity) -> None:
        for rank, theirs in followers.take_all("identity").items():
            if (problem := difference(rank, own, theirs)) is not None:
                raise OptionError(problem)
        followers.send("agreed")

    def agree(numbers: Any) -> Any:
        offers = [numbers, *followers.take_all("offer").values()]
        least = [min(each) for each in zip(*offers, strict=True)]
        followers.send("agreed", least)
        return least

    own = load_part(options, world, joined.store, report, compare, agree)
    runner = ParallelRunner(own, options.layout.place(0), followers)
    progress.note(0, "warming up", 0.0)
    with torch.inference_mode():
        first_steps(runner)
    runner.warmed()
    log.info("%d ranks share the model: %s", world.size, options.layout.name)
    return runner
