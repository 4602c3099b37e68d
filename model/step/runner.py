"""ModelRunner: compute the steps of a loaded model."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.inputs import PackedInputs
from model.attention.rope import RopeTables
from model.batch import (
    BROKEN_NUMBERS,
    RunnerInfo,
    Slice,
    SliceOutput,
    StepBatch,
    StepOutput,
    StepTooLarge,
    TokenLogprob,
)
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.memory.sizes import LOGIT_VALUES
from model.network.adapters import AdapterStore, blank
from model.network.fused import fuse
from model.network.kernels import row_counts
from model.network.lora import StepAdapters
from model.network.transformer import Transformer
from model.network.whole import whole_steps
from model.sampling_params import SamplingParams
from model.step import logprobs, packing, retry, sampler
from model.step.ahead import LastTokens, resolve
from model.step.graphs import Capture, DecodeGraphs
from model.step.images import Images
from model.step.masks import Masks

CPU = torch.device("cpu")
BLANK = -1
"""The number of an adapter of zeros, of the first steps."""


class Started(NamedTuple):
    """A step that the device computes.

    before: the last tokens of the step before.
    views: `Slice.samples` of each slice.
    sampled: the sampled tokens.
    score_rows, hidden: rows to score, hidden states [T, dim]. Empty unless a slice asks for prompt logprobs or
        embeddings, because the next step may need their memory. A step from a graph has no rows to score.
    """

    before: LastTokens
    views: Sequence[Sequence[Slice]]
    sampled: Sequence[sampler.Sampled]
    score_rows: Sequence[tuple[int, int]] = ()
    hidden: Tensor = torch.empty(0)


REPORTS = frozenset({"logprobs", "prompt_logprobs", "embed"})
"""Parameters whose results the runner adds to those of a slice."""
ALL_HIDDEN = "no token can be sampled: the request hides all tokens"


class ModelRunner:
    """A loaded model: the `model.batch.Runner` that computes in PyTorch."""

    def __init__(
        self,
        model: Transformer,
        pools: PagePools,
        attention: Attention,
        tables: RopeTables,
        info: RunnerInfo,
        masks: Masks,
        adapters: AdapterStore,
    ) -> None:
        if missing := sampler.unimplemented((masks.step,), REPORTS):
            raise NotImplementedError(f"no sampling step and no report implements {', '.join(sorted(missing))}")
        self.info = info
        self._windows = [pool.window for pool in info.pools]
        self._masks = masks
        self._adapters = adapters
        self._model = model
        self._pools = pools
        self._attention = attention
        self._tables = tables
        self._fused = fuse(model, attention, pools)
        self._whole = whole_steps(model, self._fused, pools, tables, self._block_rows())
        self._last = LastTokens.of((), (), tables.device)
        self._graphs: DecodeGraphs | None = None
        self._images = Images(model.vision)

    def record(self, max_slices: int, capture: Capture) -> None:
        """From now on, replay captured graphs for steps that only decode, with at most `max_slices` slices."""
        self._graphs = DecodeGraphs(self.decode, self.info, max_slices, self._tables.device, capture)

    @property
    def missing_graphs(self) -> int:
        """The number of graphs to capture."""
        return 0 if self._graphs is None else self._graphs.n_missing

    @property
    def row_counts(self) -> Sequence[int]:
        """Numbers of rows of steps that together use all kernels of products."""
        return row_counts(self._model, self.info.max_step_tokens)

    def hold_blank_adapter(self) -> None:
        """Keep an adapter of zeros under the number BLANK, until `warmed`."""
        self._adapters.hold(BLANK, blank(self._model))

    @property
    def grammar_restarts(self) -> int:
        return self._masks.restarts

    @property
    def waits_for_grammars(self) -> bool:
        return self._masks.waits

    @torch.inference_mode()
    def warmed(self) -> None:
        """Forget what was kept while the first steps ran, which serve nobody."""
        self._adapters.unload(BLANK)

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar, if there is one. Any thread may call it but the one that launches."""
        if params.grammar is not None:
            self._masks.prepare(params.grammar)

    def load_adapter(self, number: int, path: str) -> None:
        """Read an adapter. Any thread may call it."""
        self._adapters.load(number, Path(path))

    def has_adapter(self, number: int) -> bool:
        """Whether an adapter is in memory. Any thread may call it."""
        return self._adapters.has(number)

    def read_adapter(self, number: int, running: Collection[int]) -> None:
        """Read an adapter again, beside the `running` ones. Any thread may call it."""
        self._adapters.read_again(number, running)

    def unload_adapter(self, number: int) -> None:
        """Forget an adapter. Any thread may call it."""
        self._adapters.unload(number)

    def step(self, batch: StepBatch) -> StepOutput:
        """Launch and wait."""
        return self.launch(batch)()

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step; see `Runner`. Slices whose image or adapter has a fault are left out, and end with it."""
        self._pools.copy_pages(batch.copies)
        images = self._images.update(batch)
        adapters = self._adapters.begin_step({item.adapter for item in batch.slices} - {0})
        if batch.slices and not (images or adapters or batch.images or batch.forgotten):
            return self._launch(batch)
        faults = [fault_of(item, images, adapters) for item in batch.slices]
        sound = tuple(item for item, fault in zip(batch.slices, faults, strict=True) if fault is None)
        try:
            finish = self._launch(StepBatch(sound)) if sound else partial(StepOutput, ())
        except StepTooLarge:
            raise StepTooLarge(images) from None
        return finish if len(sound) == len(faults) and not images else partial(_with_faults, finish, faults, images)

    def _launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step. One that fails is computed at once, its slices apart. Masks of grammars are requested once."""
        self._masks.start([item.samples for item in batch.slices if item.params.grammar is not None])
        before = self._last
        started = retry.attempt(partial(self._start, batch, before), batch, self.info.max_sequences)
        if started is None:
            output = retry.apart(batch, partial(self._compute, before=before))
            self._last = LastTokens.known(batch.slices, output.slices, self._tables.device)
            return lambda: output
        if self.info.runs_ahead:
            views = list(chain.from_iterable(started.views))
            self._last = LastTokens.of(views, [some.tokens for some in started.sampled], self._tables.device)
        return partial(self._finish, batch, started)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Nothing to watch: no other process computes."""

    def close(self) -> None:
        """Nobody to tell."""

    @torch.inference_mode()
    def idle(self) -> bool:
        """Capture the next graph. No step is in flight: a load may take the place of any adapter."""
        self._adapters.begin_step(())
        return self._graphs is not None and self._graphs.capture_next()

    @torch.inference_mode()
    def decode(self, inputs: PackedInputs, last_tokens: Tensor) -> Tensor:
        """Logits [T, vocab_size] of every row: the computation that graphs capture."""
        return self._model.logits(self._hidden(inputs, last_tokens))

    def _start(self, batch: StepBatch, before: LastTokens) -> Started:
        views = [item.samples for item in batch.slices]
        flat = list(chain.from_iterable(views))
        if self._graphs is not None and _only_decodes(batch, len(flat)):
            logits = self._graphs.logits(self._pack(batch, before, CPU), before.tokens)
            if logits is not None:
                return Started(before, views, list(self._sample(logits, flat, computed=True)))
        whole = self._start_whole(batch, before, views, flat)
        if whole is not None:
            return whole
        inputs = self._pack(batch, before, self._tables.device)
        hidden = self._hidden(inputs, before.tokens, self._adapters_of(batch.slices))
        sampled = list(self._sample(hidden.index_select(0, inputs.sample_rows), flat))
        return _started(batch, before, views, sampled, hidden)

    def _start_whole(
        self, batch: StepBatch, before: LastTokens, views: Sequence[Sequence[Slice]], flat: list[Slice]
    ) -> Started | None:
        """A step of text in one call; PyTorch may sample after it. None if that cannot be."""
        if self._whole is None or any(item.images or item.adapter for item in batch.slices):
            return None
        sampling = sampler.compiled_rows(flat)
        computed = self._whole(batch.slices, [len(samples) for samples in views], sampling)
        if computed is None:
            return None
        hidden, tokens = computed
        if sampling is not None:
            sampled = [sampler.Sampled(tokens, {}, None)]
        else:
            sampled = list(self._sample(hidden[torch.from_numpy(packing.sample_rows(batch.slices))], flat))
        return _started(batch, before, views, sampled, hidden)

    @torch.inference_mode()
    def _finish(self, batch: StepBatch, started: Started) -> StepOutput:
        output = retry.attempt(partial(self._collect, batch, started), batch)
        return retry.apart(batch, partial(self._compute, before=started.before)) if output is None else output

    def _compute(self, batch: StepBatch, before: LastTokens) -> StepOutput:
        return self._collect(batch, self._start(batch, before))

    def _pack(self, batch: StepBatch, before: LastTokens, device: torch.device) -> PackedInputs:
        inputs = packing.pack(batch, self.info.page_size, self._windows, device, before.rows)
        return self._images.place(inputs, batch)

    def _adapters_of(self, slices: Sequence[Slice], lengths: Sequence[int] | None = None) -> StepAdapters | None:
        """The adapters of the rows: `lengths[i]` rows belong to slice i, by default those that it computes."""
        lengths = [item.stop - item.start for item in slices] if lengths is None else lengths
        if not any(item.adapter for item in slices):
            return None
        adapters = [self._adapters.get(item.adapter) if item.adapter else None for item in slices]
        return StepAdapters.of(adapters, lengths, self._tables.device)

    def _hidden(self, inputs: PackedInputs, last_tokens: Tensor, adapters: StepAdapters | None = None) -> Tensor:
        """Hidden states [T, dim] before the last norm; `last_tokens` [M] are those that the step before sampled."""
        if self.info.runs_ahead:
            inputs = replace(inputs, tokens=resolve(inputs.tokens, last_tokens))
        return self._model(inputs, self._tables, self._attention, self._pools, self._fused, adapters)

    def _sample(self, rows: Tensor, slices: list[Slice], *, computed: bool = False) -> Iterator[sampler.Sampled]:
        """One token after each of N rows of hidden states, or of logits that are `computed`, in blocks."""
        size = self._block_rows()
        for first in range(0, len(slices), size):
            logits, some = rows[first : first + size], slices[first : first + size]
            if not computed:
                logits = self._model.logits(logits, self._adapters_of(some, [1] * len(some)))
            yield sampler.sample(logits, some, (self._masks.step,))

    def _collect(self, batch: StepBatch, started: Started) -> StepOutput:
        """Wait for the sampled tokens, then compute the requested logprobs of prompts and embeddings."""
        if (
            self._masks.all_well
            and not started.score_rows
            and (plain := sampler.plain_tokens(started.sampled, started.views)) is not None
        ):
            return StepOutput(tuple([SliceOutput((token,)) for token in plain]))
        sampled = chain.from_iterable(some.read() for some in started.sampled)
        rows = started.score_rows or ((0, 0),) * len(batch.slices)
        outputs = []
        for item, views, (row, n_rows) in zip(batch.slices, started.views, rows, strict=True):
            tokens, scores = sampler.accepted(item, list(islice(sampled, len(views))))
            prompt = self._score(item, started.hidden[row : row + n_rows]) if n_rows else ()
            failure = ALL_HIDDEN if NO_TOKEN in tokens else self._masks.failure(views[: len(tokens)])
            pooled = self._pool(item, started.hidden[row : row + item.stop - item.start]) if item.params.embed else ()
            result = SliceOutput(tokens, scores, prompt, pooled=pooled)
            fault = self._masks.fault(views[: len(tokens)]) if _finite(result) else BROKEN_NUMBERS
            if failure is not None or fault is not None:
                result = SliceOutput(failure=failure if fault is None else None, fault=fault)
            outputs.append(result)
        return StepOutput(tuple(outputs))

    def _score(self, item: Slice, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Logprobs of the prompt tokens that follow the rows of hidden [n, dim]."""
        size = self._block_rows()
        found: list[TokenLogprob] = []
        for first in range(0, len(hidden), size):
            values = logprobs.log_softmax(self._logits(hidden[first : first + size], item))  # [block, vocab_size]
            after = item.start + first + 1
            tokens = item.tokens[after : after + len(values)]
            scores = logprobs.token_logprobs(values, tokens, [item.params.prompt_logprobs or 0] * len(values))
            ranks = logprobs.ranks(values, tokens)
            found += [score._replace(rank=rank) for score, rank in zip(scores, ranks, strict=True)]
        return tuple(found)

    def _logits(self, hidden: Tensor, item: Slice) -> Tensor:
        """Logits [n, vocab_size] of rows of hidden states of one slice."""
        return self._model.logits(hidden, self._adapters_of([item], [len(hidden)]))

    def _pool(self, item: Slice, hidden: Tensor) -> tuple[float, ...]:
        """`SliceOutput.pooled` of hidden [n, dim], in float64: in float32 the chunks of a prompt make no difference."""
        if item.params.embed == "last":
            hidden = hidden[item.n_prompt - 1 - item.start :][:1]
        return tuple(self._model.norm(hidden).double().sum(dim=0).tolist()) if len(hidden) else ()

    def _block_rows(self) -> int:
        """Rows of logits in a block: a multiple of 4, so that every block begins at a multiple of 16 bytes."""
        return max(4, LOGIT_VALUES // self.info.vocab_size // 4 * 4)


def _started(
    batch: StepBatch,
    before: LastTokens,
    views: Sequence[Sequence[Slice]],
    sampled: Sequence[sampler.Sampled],
    hidden: Tensor,
) -> Started:
    """A step with its hidden states [T, dim], if something is scored or pooled."""
    if not any(item.params.embed or item.scores_prompt for item in batch.slices):
        return Started(before, views, sampled)
    return Started(before, views, sampled, packing.score_rows(batch.slices), hidden)


def _only_decodes(batch: StepBatch, n_samples: int) -> bool:
    """Whether every slice is one token of text, after which one is sampled. Graphs have no products of adapters.

    `n_samples` tokens are sampled in the step. A slice of one token samples at most one.
    """
    if not batch.n_tokens == n_samples == len(batch.slices):
        return False
    return not any(item.images or item.adapter or item.scores_prompt for item in batch.slices)


def fault_of(item: Slice, images: Mapping[int, str], adapters: Mapping[int, str]) -> str | None:
    """The fault of an image or of the adapter that the slice needs, by their numbers; None if there is none."""
    found = (images[image.image] for image in item.images if image.image in images)
    return next(found, adapters.get(item.adapter))


def _with_faults(
    finish: Callable[[], StepOutput], faults: Sequence[str | None], images: Mapping[int, str]
) -> StepOutput:
    """The output of `finish`, which has the slices without a fault, with all slices, and the faults of images."""
    computed = iter(finish().slices)
    slices = (next(computed) if fault is None else SliceOutput(fault=fault) for fault in faults)
    return StepOutput(tuple(slices), images)


def _finite(output: SliceOutput) -> bool:
    """Whether the model gave numbers. JSON has no others, and keys and values beside such logits are as broken."""
    if NOT_FINITE in output.tokens:
        return False
    if not (output.logprobs or output.prompt_logprobs or output.pooled):
        return True
    logprobs = (item.logprob for item in (*output.logprobs, *output.prompt_logprobs))
    return all(map(isfinite, logprobs)) and all(map(isfinite, output.pooled))
