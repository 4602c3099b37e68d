"""Load the part of one rank, whichever it is."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

from model import loading
from model.checkpoint.files import Progress
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.errors import OptionError
from model.machine.device import choose_device, name_of
from model.network.group import Group
from model.options import RunnerOptions
from model.ranks.meeting import use_interface
from model.ranks.world import World
from model.setup import Setup, choose
from model.step.part import PartRunner

Identity = Mapping[str, str | int]
"""What all ranks must have in common, by the words for it in an error."""
GROUP_TIMEOUT = timedelta(hours=1)
"""Our own connections notice a rank that is gone or hangs, much earlier."""


def load_part(
    options: RunnerOptions,
    world: World,
    store: dist.Store,
    progress: Progress,
    compare: Callable[[Identity], None],
    agree: loading.Agree,
) -> PartRunner:
    """What this rank holds of the model. `compare` returns once all ranks have the same identity."""
    _use_share_of_host(options, world)
    place = options.layout.place(world.rank)
    progress("checking memory", 0.0)
    checkpoint = open_checkpoint(Path(options.model), max_model_len=options.max_model_len)
    with loading.memory_errors():
        setup = choose(checkpoint, options, place)
        compare(_identity(setup, checkpoint))
        use_interface(world.host)
        backend = "nccl" if setup.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=GROUP_TIMEOUT)
        group = Group(place, setup.device, deterministic=options.deterministic)
        member = loading.Membership(group, agree, world.local_size)
        runner = loading.load(setup, checkpoint, progress, member)
    assert isinstance(runner, PartRunner)
    return runner


def _use_share_of_host(options: RunnerOptions, world: World) -> None:
    """Take a device of its own, or cores: threads that start from now on stay on them. Raises OptionError."""
    if choose_device(options.device).type == "cuda":
        if (n_devices := torch.cuda.device_count()) < world.local_size:
            raise OptionError(
                f"--device {options.device}: this host has {n_devices} CUDA devices for {world.local_size} ranks, and "
                "each rank needs its own; choose --device cpu, or fewer ranks"
            )
        torch.cuda.set_device(world.local_rank)
    elif hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, world.processors(os.sched_getaffinity(0)))


def _identity(setup: Setup, checkpoint: Checkpoint) -> Identity:
    return {
        "weights": checkpoint.fingerprint,
        "page size": setup.attention.page_size,
        "device": setup.device.type,
        "dtype": name_of(setup.dtype),
        "KV cache dtype": name_of(setup.kv_dtype),
        "weight scheme": setup.scheme.name,
        "attention backend": setup.attention_name,
    }
