"""ModelRunner: compute the steps of a loaded model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention.cache import PagePools
from model.batch import BROKEN_NUMBERS, RunnerInfo, Slice, SliceOutput, StepBatch, StepOutput, StepTooLarge
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.sampling_params import SamplingParams
from model.step import packing, retry, sampler, scoring
from model.step.ahead import LastTokens
from model.step.drafting import Drafter
from model.step.executors import Executor, Views
from model.step.head import OutputHead
from model.step.masks import Masks
from model.step.media import Encodings

REPORTS = frozenset({"logprobs", "prompt_logprobs", "embed"})
"""Parameters whose results the runner adds to those of a slice."""
UNLIKE = "the step was computed twice, and sampled two tokens"
ALL_HIDDEN = "no token can be sampled: the limits of the request, with its grammar, hide all tokens"


class Started(NamedTuple):
    """A step that the device computes: the last tokens of the step before, and `Slice.samples` of each slice.

    Also the sampled tokens. `score_rows`, the rows to score, and `hidden` states [T, dim] are empty unless a slice asks
    for prompt logprobs or embeddings: the next step may need their memory.
    """

    before: LastTokens
    views: Views
    sampled: Sequence[sampler.Sampled]
    score_rows: Sequence[tuple[int, int]] = ()
    hidden: Tensor = torch.empty(0)


def start(executor: Executor, batch: StepBatch, before: LastTokens) -> Started:
    """Start a step after the one that sampled `before`."""
    views = [item.samples for item in batch.slices]
    hidden, sampled = executor.start(batch, views, before)
    if not any(item.params.embed or item.scores_prompt for item in batch.slices):
        return Started(before, views, sampled)
    return Started(before, views, sampled, packing.score_rows(batch.slices), hidden)


def collect(batch: StepBatch, started: Started, head: OutputHead, masks: Masks) -> StepOutput:
    """Wait for the sampled tokens, then compute the requested logprobs of prompts and embeddings."""
    if (
        masks.all_well
        and not started.score_rows
        and (plain := sampler.plain_tokens(started.sampled, started.views)) is not None
    ):
        return StepOutput(tuple([SliceOutput((token,)) for token in plain]))
    sampled = chain.from_iterable(some.read() for some in started.sampled)
    rows = started.score_rows or ((0, 0),) * len(batch.slices)
    outputs = []
    for item, views, (row, n_rows) in zip(batch.slices, started.views, rows, strict=True):
        tokens, scores = sampler.accepted(item, list(islice(sampled, len(views))))
        prompt = scoring.score(head, item, started.hidden[row : row + n_rows]) if n_rows else ()
        failure = ALL_HIDDEN if NO_TOKEN in tokens else masks.failure(views[: len(tokens)])
        own = started.hidden[row : row + item.stop - item.start]
        result = SliceOutput(tokens, scores, prompt, pooled=scoring.pool(head, item, own) if item.params.embed else ())
        fault = masks.fault(views[: len(tokens)]) if _finite(result) else BROKEN_NUMBERS
        if failure is not None or fault is not None:
            result = SliceOutput(failure=failure if fault is None else None, fault=fault)
        outputs.append(result)
    return StepOutput(tuple(outputs))


class ModelRunner:
    """A loaded model: the `model.batch.Runner` of one process. `executor` says how it computes a step."""

    def __init__(
        self,
        executor: Executor,
        head: OutputHead,
        pools: PagePools,
        info: RunnerInfo,
        masks: Masks,
        media: Encodings,
        drafter: Drafter | None = None,
    ) -> None:
        if missing := sampler.unimplemented((masks.step,), head.implemented, REPORTS):
            raise NotImplementedError(f"no sampling step and no report implements {', '.join(sorted(missing))}")
        self.executor, self.info, self.adapters = executor, info, head.adapters
        self.head, self.pages, self._masks, self._media = head, pools, masks, media
        self._drafter = drafter
        self._last = LastTokens.of((), (), head.device)

    @property
    def grammar_restarts(self) -> int:
        return self._masks.restarts

    @property
    def waits_for_grammars(self) -> bool:
        return self._masks.waits

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar, if there is one. Any thread may call it but the one that launches."""
        if params.grammar is not None:
            self._masks.prepare(params.grammar)

    def step(self, batch: StepBatch) -> StepOutput:
        """Launch and wait."""
        return self.launch(batch)()

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step; see `Runner`. Slices whose media item or adapter has a fault are left out, and end with it."""
        self.pages.copy_pages(batch.copies)
        if self._drafter is not None and self._drafter.cache is not None:
            self._drafter.cache.copy(batch.copies)
        media = self._media.update(batch)
        adapters = self.adapters.begin_step({item.adapter for item in batch.slices} - {0})
        if batch.slices and not (media or adapters or batch.media or batch.forgotten):
            return self._launch(batch)
        faults = [fault_of(item, media, adapters) for item in batch.slices]
        sound = tuple(item for item, fault in zip(batch.slices, faults, strict=True) if fault is None)
        try:
            finish = self._launch(StepBatch(sound)) if sound else partial(StepOutput, ())
        except StepTooLarge:
            raise StepTooLarge(media) from None
        return finish if len(sound) == len(faults) and not media else partial(_with_faults, finish, faults, media)

    def _launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Find the draft tokens for which slices leave places, then start the step."""
        if self._drafter is None:
            return self._start(batch)
        batch, passes, seconds = self._drafter.fill(batch)
        return partial(_with_drafting, self._start(batch), passes, seconds) if passes else self._start(batch)

    def _start(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step. One that fails is computed at once, its slices apart. Masks of grammars are requested once."""
        self._masks.start([item.samples for item in batch.slices if item.params.grammar is not None])
        before = self._last
        started = retry.attempt(partial(start, self.executor, batch, before), batch, self.info.max_sequences)
        if started is None:
            output = retry.apart(batch, partial(self._compute, before=before))
            self._last = LastTokens.known(batch.slices, output.slices, self.head.device)
            return lambda: output
        if self.info.runs_ahead:
            views = list(chain.from_iterable(started.views))
            self._last = LastTokens.of(views, [some.tokens for some in started.sampled], self.head.device)
        return partial(self._finish, batch, started)

    @torch.inference_mode()
    def _finish(self, batch: StepBatch, started: Started) -> StepOutput:
        output = retry.attempt(partial(self._collect, batch, started), batch)
        if output is not None:
            return output
        output = retry.apart(batch, partial(self._compute, before=started.before))
        return _as_sampled(output, started) if self.info.runs_ahead else output

    def _collect(self, batch: StepBatch, started: Started) -> StepOutput:
        return collect(batch, started, self.head, self._masks)

    def _compute(self, batch: StepBatch, before: LastTokens) -> StepOutput:
        return self._collect(batch, start(self.executor, batch, before))

    def watch(self, lost: Callable[[str], None]) -> None:
        """Do nothing: no other process computes."""

    def close(self) -> None:
        """Do nothing: nobody waits."""

    @torch.inference_mode()
    def idle(self) -> bool:
        """Let the executor do what can wait. No step is in flight: a load may take the place of any adapter."""
        self.adapters.begin_step(())
        return self.executor.idle()


def fault_of(item: Slice, media: Mapping[int, str], adapters: Mapping[int, str]) -> str | None:
    """Return the fault of a media item or adapter that the slice needs, by their numbers; None if there is none."""
    found = (media[placed.number] for placed in item.media if placed.number in media)
    return next(found, adapters.get(item.adapter))


def _with_drafting(finish: Callable[[], StepOutput], passes: int, seconds: float) -> StepOutput:
    return replace(finish(), draft_passes=passes, draft_seconds=seconds)


def _with_faults(
    finish: Callable[[], StepOutput], faults: Sequence[str | None], media: Mapping[int, str]
) -> StepOutput:
    """Complete the output of `finish`, which has only slices without a fault, and add the faults of media items."""
    computed = iter(finish().slices)
    slices = (next(computed) if fault is None else SliceOutput(fault=fault) for fault in faults)
    return StepOutput(tuple(slices), media)


def _as_sampled(output: StepOutput, started: Started) -> StepOutput:
    """Return the output of a step that was computed again. A slice with another token than at first has a fault.

    The next step has used the first token. A slice with a draft is not compared.
    """
    tokens = chain.from_iterable(some.tokens.tolist() for some in started.sampled)
    first = [tuple(islice(tokens, len(views))) for views in started.views]
    slices = (
        SliceOutput(fault=UNLIKE) if len(ids) == 1 and found.tokens not in ((), ids) else found
        for found, ids in zip(output.slices, first, strict=True)
    )
    return StepOutput(tuple(slices))


def _finite(output: SliceOutput) -> bool:
    """Return whether the logits are finite. JSON has no other numbers, and other keys and values are as broken."""
    if NOT_FINITE in output.tokens:
        return False
    if not (output.logprobs or output.prompt_logprobs or output.pooled):
        return True
    logprobs = (item.logprob for item in (*output.logprobs, *output.prompt_logprobs))
    return all(map(isfinite, logprobs)) and all(map(isfinite, output.pooled))
