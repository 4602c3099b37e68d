"""Rank 0: it starts the other ranks of its host, meets them, and loads its part of the model while they load theirs."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from model import loading
from model.checkpoint.files import Progress
from model.errors import NoriaError, OptionError
from model.machine import frames
from model.machine.child import ending
from model.machine.device import choose_device
from model.machine.forking import fork, n_threads
from model.options import RunnerOptions
from model.ranks.follow import run
from model.ranks.followers import Followers, Lost
from model.ranks.meeting import Host, Joined, difference
from model.ranks.part import Identity, load_part
from model.ranks.runner import NO_ADAPTERS, ParallelRunner
from model.ranks.world import World, check_size, from_environment
from model.warming import compile_all, first_steps

log = logging.getLogger(__name__)


def starter(n_ranks: str) -> Callable[..., ParallelRunner]:
    """Fork the other ranks of this host now, while this process has one thread and has imported PyTorch.

    Returns `create`. Ranks that torchrun starts are not ours to start.
    """
    world = World(0, int(n_ranks), 0, int(n_ranks))
    return create if from_environment() else partial(create, local=Local(world))


class Local:
    """The ranks of this host as children of this process, which die with it. They wait for rank 0's options."""

    def __init__(self, world: World) -> None:
        """Fork them, and then open the meeting, which starts threads. Raises OptionError if that is not possible."""
        if (n := n_threads()) > 1:
            raise OptionError(f"a process with {n} threads cannot fork ranks: a library has started one at its import")
        pairs = {rank: socket.socketpair() for rank in range(1, world.size)}
        try:
            self.processes = {rank: fork(partial(_wait, theirs)) for rank, (_, theirs) in pairs.items()}
        except OSError as error:
            raise OptionError(f"the ranks cannot be started: {error.strerror}") from error
        self.host = Host(world)
        for rank, (ours, theirs) in pairs.items():
            with ours, theirs, suppress(OSError):  # it has ended, which `check` finds
                frames.send(ours, asdict(replace(self.host.world, rank=rank, local_rank=rank)))

    def check(self) -> None:
        """Raise OptionError if one has ended."""
        for rank, process in self.processes.items():
            if (code := process.poll()) is not None:
                raise OptionError(f"rank {rank} (process {process.pid}) has ended while it started: {ending(code)}")


def _wait(wire: socket.socket) -> None:
    """Run a rank, once rank 0 says which. All other descriptors belong to rank 0."""
    own = wire.fileno()
    os.closerange(3, own)
    os.closerange(own + 1, os.sysconf("SC_OPEN_MAX"))
    with wire:
        value, _ = frames.receive(wire)
    run(World(**value), None)


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
