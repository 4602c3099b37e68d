"""Rank 0: it starts the other ranks of its host, meets them, and loads its part of the model while they load theirs."""

import logging
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from model import loading
from model.checkpoint.files import Progress
from model.errors import NoriaError, OptionError
from model.machine.child import ending, start_python
from model.machine.device import choose_device
from model.options import RunnerOptions
from model.ranks.followers import Followers, Lost
from model.ranks.meeting import Host, Joined, difference
from model.ranks.part import Identity, load_part
from model.ranks.runner import NO_ADAPTERS, ParallelRunner
from model.ranks.world import World, check_size, from_environment
from model.warming import compile_all, first_steps

log = logging.getLogger(__name__)


def starter(n_ranks: str) -> Callable[..., ParallelRunner]:
    """Start the other ranks of this host now, so that they have imported PyTorch when `create` needs them.

    Returns `create`. Ranks that torchrun starts are not ours to start.
    """
    world = World(0, int(n_ranks), 0, int(n_ranks))
    return create if from_environment() else partial(create, local=Local(world))


class Local:
    """The ranks of this host as children of this process, which die with it. They wait for rank 0's options."""

    def __init__(self, world: World) -> None:
        self.host = Host(world)
        self.processes = {rank: self._start(rank) for rank in range(1, world.size)}

    def _start(self, rank: int) -> "subprocess.Popen[bytes]":
        own = replace(self.host.world, rank=rank, local_rank=rank)
        return start_python("model.ranks", environment=own.variables)

    def check(self) -> None:
        """Raise OptionError if one has ended."""
        for rank, process in self.processes.items():
            if (code := process.poll()) is not None:
                raise OptionError(f"rank {rank} (process {process.pid}) has ended while it started: {ending(code)}")


def create(progress: Progress, local: Local | None = None, **options: Any) -> ParallelRunner:
    """Load a model that several ranks share, with `RunnerOptions(**options)`.

    The other ranks are `local`, or torchrun has started them. Raises ModelError and OptionError as `loading.create`
    does, also for what another rank finds.
    """
    chosen = RunnerOptions(**options)
    check(chosen)
    progress("starting the ranks", 0.0)
    host = local.host if local else Host(_world(chosen.layout.size))
    followers = Followers()
    joined = host.meet(options, local.check if local else lambda: None)
    followers.connect(joined.links, local.processes if local else {})
    with _reporting(followers):
        return _load(chosen, host.world, joined, followers, progress)


def _world(n_ranks: int) -> World:
    world = from_environment()
    check_size(world, n_ranks)
    assert world is not None, "`starter` gives the ranks of one host"
    return world


def check(options: RunnerOptions) -> None:
    """Raise OptionError for what a group of ranks cannot do."""
    loading.check_options(options)
    if options.adapters:
        raise OptionError(f"--lora: {NO_ADAPTERS}")


@contextmanager
def _reporting(followers: Followers) -> Iterator[None]:
    """Raise the cause where several ranks fail. The others learn of an error of rank 0."""
    try:
        yield
    except Lost:
        raise
    except NoriaError as error:
        followers.send("refused", f"rank 0 could not load the model: {error}")
        raise
    except Exception as error:
        followers.end(error)


def _load(
    options: RunnerOptions, world: World, joined: Joined, followers: Followers, progress: Progress
) -> ParallelRunner:
    def report(stage: str, fraction: float) -> None:
        followers.check()
        progress(stage, fraction)

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

    device = choose_device(options.device)
    own = load_part(options, world, joined.store, report, compare, agree)
    runner = ParallelRunner(own, options.layout.place(0), followers)
    progress("warming up", 0.0)
    first_steps(runner)
    if device.type == "cuda" and not options.fast_start:
        compile_all(runner, own.head.model, report)
    log.info("%d ranks share the model: %s", world.size, options.layout.name)
    return runner
