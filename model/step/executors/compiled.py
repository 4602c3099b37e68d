"""A step in one call of the compiled kernels of a CPU."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from model.batch import StepBatch
from model.network.compiled import CompiledNetwork
from model.step import packing, sampler
from model.step.ahead import LastTokens
from model.step.executors import Views
from model.step.head import OutputHead
from model.step.media import Encodings
from model.step.sampler import Sampled

CPU = torch.device("cpu")


class CompiledExecutor:
    """The `Executor` whose kernels compute all layers, and sample where no request needs PyTorch for it."""

    def __init__(self, network: CompiledNetwork, media: Encodings, head: OutputHead) -> None:
        self._network, self._media, self._head = network, media, head

    def start(self, batch: StepBatch, views: Views, before: LastTokens) -> tuple[Tensor, Sequence[Sampled]]:
        """See `Executor`."""
        flat = [*chain.from_iterable(views)]
        compiled = sampler.compiled_rows(flat) if self._network.samples else None
        sampling = compiled and compiled.rows
        adapters = [self._head.adapters.get(item.adapter) if item.adapter else None for item in batch.slices]
        embedded = self._media.place(batch, CPU)
        hidden, tokens = self._network.step(batch.slices, list(map(len, views)), sampling, adapters, embedded)
        if compiled is not None:
            return hidden, [Sampled(tokens, {}, None)]
        if not self._network.has_head:
            return hidden, ()
        return hidden, self._head.sample(hidden[torch.from_numpy(packing.sample_rows(batch.slices))], flat)

    def idle(self) -> bool:
        """Return False: nothing can wait."""
        return False
