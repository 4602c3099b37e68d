"""The output head of a step: logits, sampled tokens and norms of hidden states, some rows at a time."""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from model.batch import Slice
from model.kernels import cuda as triton
from model.kernels.cpu.functions import Kernels
from model.memory.sizes import LOGIT_VALUES
from model.network.adapters import AdapterStore
from model.network.lora import StepAdapters
from model.network.transformer import Transformer
from model.step import sampler
from model.step.distribution import BY_KERNELS, IMPLEMENTED, in_place
from model.step.logits import SamplingStep


class Head:
    """The head of `model` with the `adapters` of its requests; `last` are the last sampling steps on the logits,
    `kernels` the compiled ones of a CPU. `by_torch` are kinds of a GPU's kernels that do not serve. `implemented` are
    the parameters of the distribution that what samples here knows.

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
        self.adapters, self.last, self.kernels = adapters, last, kernels
        self.block_rows = max(4, LOGIT_VALUES // model.config.vocab_size // 4 * 4)
        self.model, self.device = model, next(model.parameters()).device
        self._adapts_by_torch, self._samples_by_torch = "adapters" in by_torch, "sampling" in by_torch
        by_kernels = kernels is not None or (triton.serve_on(self.device) and not self._samples_by_torch)
        self.implemented = BY_KERNELS if by_kernels else IMPLEMENTED

    def sample(self, hidden: Tensor, slices: Sequence[Slice]) -> list[sampler.Sampled]:
        """One token after each of these slices, from hidden states [N, dim]."""
        found = []
        for block, rows in self._blocks(hidden):
            some = slices[block]
            logits = self.model.logits(rows, self.adapters_of(some, [1] * len(some)))
            found.append(self._sampled(logits, some))
        return found

    def sample_logits(self, logits: Tensor, slices: Sequence[Slice]) -> list[sampler.Sampled]:
        """One token after each of these slices, from logits [N, vocab_size]. All at once, if that takes no memory."""
        if in_place(logits, by_torch=self._samples_by_torch) and sampler.takes_no_memory(slices):
            return [self._sampled(logits, slices)]
        return [self._sampled(rows, slices[block]) for block, rows in self._blocks(logits)]

    def _sampled(self, logits: Tensor, slices: Sequence[Slice]) -> sampler.Sampled:
        return sampler.sample(logits, slices, self.last, self.kernels, by_torch=self._samples_by_torch)

    def logits(self, hidden: Tensor, item: Slice) -> Iterator[Tensor]:
        """Logits [n, vocab_size] of hidden states [N, dim] of one slice, a block at a time."""
        for _, rows in self._blocks(hidden):
            yield self.model.logits(rows, self.adapters_of([item], [len(rows)]))

    def normed(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, dim] after the last norm."""
        return self.model.norm(hidden)

    def adapters_of(self, slices: Sequence[Slice], lengths: Sequence[int]) -> StepAdapters | None:
        """The adapters of rows, of which `lengths[i]` belong to slice i; None if no slice has one."""
        if not any(item.adapter for item in slices):
            return None
        found = [self.adapters.get(item.adapter) if item.adapter else None for item in slices]
        return StepAdapters.of(found, lengths, self.device, by_torch=self._adapts_by_torch)

    def _blocks(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, len(hidden), self.block_rows):
            yield (block := slice(first, first + self.block_rows)), hidden[block]


class SplitHead(Head):
    """The head that the ranks of a stage share: the first has the logits and samples, the others send it theirs."""

    def sample(self, hidden: Tensor, slices: Sequence[Slice]) -> list[sampler.Sampled]:
        found = []
        for block, rows in self._blocks(hidden):
            own, group = self.model.own_logits(rows).float(), self.model.group
            assert group is not None
            widths = self.model.shard.vocab_widths
            sampled = sampler.sample_parts(
                *(own, slices[block], group, widths, self.last, self.kernels), by_torch=self._samples_by_torch
            )
            found += [sampled] if sampled is not None else []
        return found
