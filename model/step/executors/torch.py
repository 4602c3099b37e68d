"""A step in PyTorch, layer by layer."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.inputs import PackedInputs
from model.attention.rope import RopeTables
from model.batch import RunnerInfo, StepBatch
from model.network.lora import StepAdapters
from model.network.transformer import Transformer
from model.step import packing
from model.step.ahead import LastTokens, resolve
from model.step.executors import Views
from model.step.head import OutputHead
from model.step.media import Encodings
from model.step.sampler import Sampled


class TorchExecutor:
    """The `Executor` that calls one layer after the other, on any device."""

    def __init__(
        self,
        model: Transformer,
        attention: Attention,
        pools: PagePools,
        tables: RopeTables,
        info: RunnerInfo,
        media: Encodings,
        head: OutputHead,
    ) -> None:
        self.model, self.info, self.head = model, info, head
        self.device = tables.device
        self._attention, self._pools, self._tables, self._media = attention, pools, tables, media
        self._windows = [pool.window for pool in info.pools]

    def start(self, batch: StepBatch, views: Views, before: LastTokens) -> tuple[Tensor, Sequence[Sampled]]:
        """See `Executor`."""
        inputs = packing.pack(batch, self.info.page_size, self._windows, self.device, before.rows)
        inputs = replace(inputs, embedded=self._media.place(batch, self.device))
        lengths = [item.stop - item.start for item in batch.slices]
        hidden = self.hidden(inputs, before.tokens, self.head.adapters_of(batch.slices, lengths))
        if not self.model.has_head:
            return hidden, ()
        return hidden, self.head.sample(hidden.index_select(0, inputs.sample_rows), [*chain.from_iterable(views)])

    def idle(self) -> bool:
        """Return False: nothing can wait."""
        return False

    def columns(self, batch: StepBatch, views: Views, before: LastTokens) -> packing.Columns:
        """Pack a step without media on the host."""
        return packing.columns(batch, self.info.page_size, self._windows, before.rows, list(map(len, views)))

    def hidden(self, inputs: PackedInputs, last_tokens: Tensor, adapters: StepAdapters | None = None) -> Tensor:
        """Compute hidden states [T, dim] before the last norm; `last_tokens` [M] are from the step before."""
        inputs = replace(inputs, tokens=resolve(inputs.tokens, last_tokens))
        return self.model(inputs, self._tables, self._attention, self._pools, adapters)
