"""ModelRunner: compute the steps of a loaded model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.inputs import PackedInputs
from model.batch import RunnerInfo, Slice, SliceOutput, StepBatch, StepOutput, TokenLogprob
from model.memory.sizes import LOGIT_VALUES
from model.network.fused import fuse
from model.network.transformer import Transformer
from model.sampling_params import SamplingParams
from model.step import logprobs, packing, retry, sampler
from model.step.ahead import Drawn, resolve
from model.step.distribution import NO_TOKEN
from model.step.graphs import Capture, DecodeGraphs
from model.step.masks import Masks

CPU = torch.device("cpu")


class Started(NamedTuple):
    """A step that the device computes: what the step before drew, the draws of each slice, what was drawn, and for what
    is to be done with hidden states [T, dim] (none, of a step that only decodes) the rows to score."""

    before: Drawn
    views: Sequence[Sequence[Slice]]
    draws: Sequence[sampler.Sampled]
    score_rows: Sequence[tuple[int, int]] = ()
    hidden: Tensor = torch.empty(0)


class ModelRunner:
    """A loaded model. Satisfies `model.batch.Runner`; owned by one thread."""

    def __init__(
        self, model: Transformer, pools: PagePools, attention: Attention, table: Tensor, info: RunnerInfo, masks: Masks
    ) -> None:
        if missing := sampler.unimplemented((masks.step,)):
            raise NotImplementedError(f"no sampling step implements {', '.join(sorted(missing))}")
        self.info = info
        self._windows = [pool.window for pool in info.pools]
        self._masks = masks
        self._model = model
        self._pools = pools
        self._attention = attention
        self._table = table  # [max_model_len, 2, head_dim/2]
        self._fused = fuse(model, attention, pools)
        self._drawn = Drawn.of((), (), table.device)
        self._graphs: DecodeGraphs | None = None
        self._room = retry.Room()

    def record(self, most: int, capture: Capture) -> None:
        """From now on repeat steps of at most `most` slices that only decode, as `capture` recorded them."""
        self._graphs = DecodeGraphs(self.decode, self.info, most, self._table.device, capture)

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar, if there is one; on any thread but the stepping one."""
        if params.grammar is not None:
            self._masks.prepare(params.grammar)

    def step(self, batch: StepBatch) -> StepOutput:
        """Launch and wait."""
        return self.launch(batch)()

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Compute every slice, write its keys and values to its pages, draw where a slice draws; see `Runner`.

        If memory does not suffice, in parts. The masks of all of them are asked for once.
        """
        self._masks.start([item.samples for item in batch.slices])
        before = self._drawn
        started = self._room.attempt(partial(self._start, batch, before=before), batch)
        if started is None:
            output = retry.in_parts(batch, partial(self._compute, before=before), self._room)
            self._drawn = Drawn.known(batch.slices, output.slices, self._table.device)
            return lambda: output
        if self.info.runs_ahead:
            drawing = [view for views in started.views for view in views]
            self._drawn = Drawn.of(drawing, [some.tokens for some in started.draws], self._table.device)
        return partial(self._finish, batch, started)

    @torch.inference_mode()
    def idle(self) -> bool:
        """Record a graph that is missing."""
        return self._graphs is not None and self._graphs.capture_next()

    @torch.inference_mode()
    def decode(self, inputs: PackedInputs, drawn: Tensor) -> Tensor:
        """Logits [T, vocab_size] of every row: what a graph repeats."""
        return self._model.logits(self._hidden(inputs, drawn))

    def _start(self, batch: StepBatch, before: Drawn) -> Started:
        views = [item.samples for item in batch.slices]
        drawing = [view for item in views for view in item]
        if self._graphs is not None and _only_decodes(batch):
            logits = self._graphs.logits(self._pack(batch, before, CPU), before.tokens)
            if logits is not None:
                return Started(before, views, list(self._draw(logits, drawing, lambda rows: rows)))
        inputs = self._pack(batch, before, self._table.device)
        hidden = self._hidden(inputs, before.tokens)
        draws = list(self._draw(hidden.index_select(0, inputs.sample_rows), drawing, self._model.logits))
        return Started(before, views, draws, inputs.score_rows, hidden)

    @torch.inference_mode()
    def _finish(self, batch: StepBatch, started: Started) -> StepOutput:
        output = self._room.finish(partial(self._collect, batch, started), batch)
        return (
            retry.in_parts(batch, partial(self._compute, before=started.before), self._room)
            if output is None
            else output
        )

    def _compute(self, batch: StepBatch, before: Drawn) -> StepOutput:
        return self._collect(batch, self._start(batch, before))

    def _pack(self, batch: StepBatch, before: Drawn, device: torch.device) -> PackedInputs:
        return packing.pack(batch, self.info.page_size, self._windows, device, before.rows)

    def _hidden(self, inputs: PackedInputs, drawn: Tensor) -> Tensor:
        """Hidden states [T, dim] before the last norm; `drawn` are the tokens that the step before drew."""
        if self.info.runs_ahead:
            inputs = replace(inputs, tokens=resolve(inputs.tokens, drawn))
        return self._model(inputs, self._table, self._attention, self._pools, self._fused)

    def _draw(
        self, rows: Tensor, slices: list[Slice], logits_of: Callable[[Tensor], Tensor]
    ) -> Iterator[sampler.Sampled]:
        """One token after each of N rows, of which `logits_of` some gives their logits [n, vocab_size]."""
        size = self._block_rows()
        for first in range(0, len(slices), size):
            logits = logits_of(rows[first : first + size])
            yield sampler.sample(logits, slices[first : first + size], (self._masks.step,))

    def _collect(self, batch: StepBatch, started: Started) -> StepOutput:
        """Wait for what was drawn; score and pool what is wanted."""
        drawn = chain.from_iterable(some.read() for some in started.draws)
        rows = started.score_rows or ((0, 0),) * len(batch.slices)
        outputs = []
        for item, wanted, (row, n_rows) in zip(batch.slices, started.views, rows, strict=True):
            tokens, scores = _kept(item, list(islice(drawn, len(wanted))))
            prompt = self._score(item, started.hidden[row : row + n_rows]) if n_rows else ()
            failure = self._masks.failure(wanted[: len(tokens)])
            if NO_TOKEN in tokens:
                failure = (
                    "no token is left to draw: the request's limits hide all, or the model's logits are not finite"
                )
            pooled = self._pool(item, started.hidden[row : row + item.stop - item.start]) if item.params.embed else ()
            given = SliceOutput(tokens, scores, prompt, pooled=pooled)
            outputs.append(given if failure is None else SliceOutput(failure=failure))
        return StepOutput(tuple(outputs))

    def _score(self, item: Slice, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Logprobs of the prompt tokens that follow the rows of hidden [n, dim]."""
        size = self._block_rows()
        found: list[TokenLogprob] = []
        for first in range(0, len(hidden), size):
            values = logprobs.log_softmax(self._model.logits(hidden[first : first + size]))  # [block, vocab_size]
            after = item.start + first + 1
            tokens = item.tokens[after : after + len(values)]
            scores = logprobs.token_logprobs(values, tokens, [item.params.prompt_logprobs or 0] * len(values))
            ranks = logprobs.ranks(values, tokens)
            found += [score._replace(rank=rank) for score, rank in zip(scores, ranks, strict=True)]
        return tuple(found)

    def _pool(self, item: Slice, hidden: Tensor) -> tuple[float, ...]:
        """`SliceOutput.pooled` of hidden [n, dim]; in float64, so that how a prompt is cut shows in no float32."""
        if item.params.embed == "last":
            hidden = hidden[item.n_prompt - 1 - item.start :][:1]
        return tuple(self._model.norm(hidden).double().sum(dim=0).tolist()) if len(hidden) else ()

    def _block_rows(self) -> int:
        return max(1, LOGIT_VALUES // self.info.vocab_size)


def _only_decodes(batch: StepBatch) -> bool:
    """Whether every slice is one token, and draws."""
    return all(
        item.stop - item.start == 1 and len(item.samples) == 1 and not item.scores_prompt for item in batch.slices
    )


def _kept(
    item: Slice, drawn: list[tuple[int, TokenLogprob | None]]
) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
    """Tokens drawn along the draft, up to the first that differs from it, and their logprobs."""
    draft = item.tokens[item.stop - item.n_draft : item.stop]
    agree = takewhile(lambda pair: pair[0] == pair[1][0], zip(draft, drawn, strict=False))
    kept = drawn[: sum(1 for _ in agree) + 1]
    return tuple(token for token, _ in kept), tuple(logprob for _, logprob in kept if logprob is not None)
