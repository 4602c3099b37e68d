"""The output head of a step: logits, sampled tokens and norms of hidden states, some rows at a time."""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from model.batch import Slice
from model.kernels.cpu.functions import Kernels
from model.memory.sizes import LOGIT_VALUES
from model.network.adapters import AdapterStore
from model.network.lora import StepAdapters
from model.network.transformer import Transformer
from model.step import sampler
from model.step.distribution import BY_KERNELS, IMPLEMENTED, on_gpu
from model.step.logits import SamplingStep


class OutputHead:
    """The head of `model` with the `adapters` of its requests; `last` are the last sampling steps on the logits,
    `kernels` those that sample; compiled ones of a CPU are given. `by_torch` are kinds of a GPU's kernels that do not
    serve. `implemented` are the parameters of the distribution that what samples here knows.

    `block_rows` limits the memory of logits. It is a multiple of 4: every block begins at a multiple of 16 bytes.
    """

    def __init__(
        self,
        model: Transformer,
        adapters: AdapterStore,
        last: Sequence[SamplingStep],
        kernels: Kernels | None,
        by_torch: Collection[str] = (),
    ) -> None:
        self.adapters, self.last = adapters, last
        self.block_rows = max(4, LOGIT_VALUES // model.config.vocab_size // 4 * 4)
        self.model, self.device = model, next(model.parameters()).device
        self._adapts_by_torch = "adapters" in by_torch
        of_gpu = None if "sampling" in by_torch else on_gpu(self.device, model.config.vocab_size)
        self.kernels = kernels or of_gpu
        self.implemented = IMPLEMENTED if self.kernels is None else BY_KERNELS

    def sample(self, hidden: Tensor, slices: Sequence[Slice]) -> list[sampler.Sampled]:
        """Sample one token after each of these slices, from hidden states [N, dim]. One rank of those here samples."""
        found = []
        for block, rows in self._blocks(hidden):
            some = slices[block]
            logits = self.model.logits(rows, self.adapters_of(some, [1] * len(some)))
            if self.model.shard.place.samples:
                found.append(sampler.sample(logits, some, self.last, self.kernels))
        return found

    def sample_logits(self, logits: Tensor, slices: Sequence[Slice]) -> list[sampler.Sampled]:
        """Sample one token after each slice, from logits [N, vocab_size]. All at once, if that takes no memory."""
        at_once = self.kernels is not None and all(sampler.AROUND.isdisjoint(item.params.used) for item in slices)
        blocks = ((slice(None), logits),) if at_once else self._blocks(logits)
        return [sampler.sample(rows, slices[block], self.last, self.kernels) for block, rows in blocks]

    def logits(self, hidden: Tensor, item: Slice) -> Iterator[Tensor]:
        """Yield logits [n, vocab_size] of hidden states [N, dim] of one slice, a block at a time."""
        for _, rows in self._blocks(hidden):
            yield self.model.logits(rows, self.adapters_of([item], [len(rows)]))

    def normed(self, hidden: Tensor) -> Tensor:
        """Return hidden states [N, dim] after the last norm."""
        return self.model.norm(hidden)

    def adapters_of(self, slices: Sequence[Slice], lengths: Sequence[int]) -> StepAdapters | None:
        """Return the adapters of rows, of which `lengths[i]` belong to slice i; None if no slice has one."""
        if not any(item.adapter for item in slices):
            return None
        found = [self.adapters.get(item.adapter) if item.adapter else None for item in slices]
        return StepAdapters.of(found, lengths, self.device, by_torch=self._adapts_by_torch)

    def _blocks(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, len(hidden), self.block_rows):
            yield (block := slice(first, first + self.block_rows)), hidden[block]
