"""The part of one rank, whichever it is: how it is loaded, and how it computes its part of each step."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist

from model import loading
from model.attention.cache import PagePools
from model.batch import RunnerInfo, Slice, StepBatch, StepOutput
from model.checkpoint.files import Progress
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.errors import OptionError
from model.machine.device import choose_device, name_of
from model.network.group import Group
from model.options import RunnerOptions
from model.ranks.meeting import use_interface
from model.ranks.world import World
from model.setup import Setup, choose
from model.sharding.layout import RankPlace
from model.step.executors import Executor
from model.step.head import OutputHead
from model.step.masks import Masks
from model.step.media import FAULT, Encodings
from model.step.runner import ModelRunner, Started, fault_of, start

Identity = Mapping[str, str | int]
"""Properties that all ranks must share, by their names in an error."""
GROUP_TIMEOUT = timedelta(hours=1)
"""Our own connections notice a rank that is gone or hangs, much earlier."""


class PartRunner(ModelRunner):
    """Computes the part of the rank at `place` of each step. The ranks of a stage send and receive in the same order.

    A step that raises is not computed in parts, because the other ranks would not know. Its output is that of the whole
    step on the rank that samples, and empty on the others. The `group` counts what this rank sends.
    """

    def __init__(
        self,
        place: RankPlace,
        group: Group,
        executor: Executor,
        head: OutputHead,
        pools: PagePools,
        info: RunnerInfo,
        masks: Masks,
        media: Encodings,
    ) -> None:
        super().__init__(executor, head, pools, info, masks, media)
        self.group, self._place = group, place
        self.media_faults: Mapping[int, str] = {}
        """Media that could not be encoded in the latest step, by number, as all ranks of the first stage know them."""

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step. Slices whose media cannot be encoded are computed without: other ranks need not know."""
        self.pages.copy_pages(batch.copies)
        self.media_faults = self._update_media(batch)
        batch = StepBatch(tuple(map(self._with_sound_media, batch.slices)))
        if not batch.slices:
            return partial(StepOutput, ())
        if self._place.samples:
            self._masks.start([item.samples for item in batch.slices if item.params.grammar is not None])
        return partial(self._finish, batch, start(self.executor, batch, self._last))

    def _update_media(self, batch: StepBatch) -> dict[int, str]:
        """Return the faults of media items, by number. If one rank has no memory for an item, it fails on all."""
        if not (self._place.is_first and (batch.media or batch.forgotten)):
            return {}
        own = self._media.update(batch)
        failed = torch.tensor([[work.number in own] for work in batch.media], dtype=torch.float32)
        counts = self.group.sum(failed.to(self.head.device)).flatten().tolist() if batch.media else ()
        faults = [work.number for work, count in zip(batch.media, counts, strict=True) if count]
        for number in faults:
            self._media.drop(number)
        return {number: own.get(number, FAULT) for number in faults}

    def _with_sound_media(self, item: Slice) -> Slice:
        sound = self._place.is_first and fault_of(item, self.media_faults, {}) is None
        return item if sound else item._replace(media=())

    @torch.inference_mode()
    def _finish(self, batch: StepBatch, started: Started) -> StepOutput:
        if self._place.samples:
            return self._collect(batch, started)
        if self._place.is_last:
            for item, (row, n_rows) in zip(batch.slices, started.score_rows, strict=bool(started.score_rows)):
                for _ in self.head.logits(started.hidden[row : row + n_rows], item):
                    pass  # its columns are for the rank that samples, in the same blocks
        return StepOutput(())


def load_part(
    options: RunnerOptions,
    world: World,
    store: dist.Store,
    progress: Progress,
    compare: Callable[[Identity], None],
    agree: loading.Agree,
) -> PartRunner:
    """Load the rank's part of the model. `compare` returns once all ranks have the same identity."""
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
        member = loading.Membership(group, agree, world.local_size, partial(PartRunner, place, group))
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
        if world.local_size > 1 and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1":
            del os.environ["OMP_NUM_THREADS"]  # torchrun's default for several processes of a host, nobody's choice


def _identity(setup: Setup, checkpoint: Checkpoint) -> Identity:
    config = setup.shard.whole
    return {
        "weights": checkpoint.fingerprint,
        **{each.name: repr(getattr(config, each.name)) for each in fields(config)},
        "page size": setup.attention.page_size,
        "device": setup.device.type,
        "dtype": name_of(setup.dtype),
        "KV cache dtype": name_of(setup.kv_dtype),
        "weight scheme": setup.scheme.name,
        "attention backend": setup.attention_name,
    }
