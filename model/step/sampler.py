"""Logits to tokens: ordered steps, each only for the rows that use its parameters, then one token for each row.

Order: logprobs of the model's own distribution; hidden tokens, logit_bias, penalties, grammars; greedy rows take the
greatest logit (lowest id on ties); temperature, min_p, top_k, top_p; one sampled token. The noise of sampling depends
only on (seed, choice, output index, token): a row's result does not depend on other rows, the batch or a retry.
Nothing waits for the device: sampled tokens stay there for the next step, and `Sampled.read` waits for their copy.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import chain, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice, TokenLogprob
from model.kernels.cpu.functions import Kernels
from model.machine.transfers import Fetch
from model.sampling_params import PARAMETERS, Stage
from model.step.distribution import SamplingKernels, choose, kernel_rows
from model.step.logits import LOGITS_STEPS, PENALTIES, SamplingStep, apply, counted, rows_of
from model.step.logprobs import Scores, log_softmax
from model.token_counts import TokenCounts


class Sampled:
    """Tokens, NO_TOKEN or NOT_FINITE, after N slices: `tokens` [N] int64 on the device. Also requested logprobs."""

    def __init__(self, tokens: Tensor, scores: Mapping[int, int], scored: "Scores | None") -> None:
        self.tokens = tokens
        self._fetch = Fetch(tokens)
        self._scores = scores  # row -> place in `scored`
        self._scored = scored

    def ids(self) -> list[int] | None:
        """Wait for the device; the tokens, or None if there are logprobs beside them."""
        return None if self._scored else self._fetch.wait().tolist()

    def read(self) -> list[tuple[int, TokenLogprob | None]]:
        """Wait for the device, and return the tokens with their log probabilities."""
        logprobs = self._scored.read() if self._scored else []
        ids = self._fetch.wait().tolist()
        return [(token, logprobs[self._scores[row]] if row in self._scores else None) for row, token in enumerate(ids)]


def sample(
    logits: Tensor,
    slices: Sequence[Slice],
    last: Sequence[SamplingStep] = (),
    kernels: SamplingKernels | None = None,
) -> Sampled:
    """Sample one token after each slice, from logits [N, vocab_size] float32, which are overwritten.

    `last` are the last steps on the logits. Without `kernels` PyTorch samples.
    """
    scored_rows = [row for row, item in enumerate(slices) if item.params.logprobs is not None]
    own = log_softmax(rows_of(logits, scored_rows)) if scored_rows else None
    apply((*LOGITS_STEPS, *last), logits, slices)
    tokens = choose(logits, slices, kernels)
    scored = None
    if own is not None:
        counts = [slices[row].params.logprobs or 0 for row in scored_rows]
        scored = Scores(own, rows_of(tokens, scored_rows).clamp(min=0), counts)
    return Sampled(tokens, {row: place for place, row in enumerate(scored_rows)}, scored)


AROUND = frozenset(name for name, row in PARAMETERS.items() if row.stage is Stage.LOGITS) | {"logprobs"}
"""Parameters of a sampling step on the logits, or of a report. They take memory that grows with the vocabulary."""
NEEDS_PYTORCH = AROUND.difference(PENALTIES)
"""Parameters that the compiled kernel does not know. It implements penalties and all of `Stage.DISTRIBUTION`."""


class CompiledRows(NamedTuple):
    """`kernel_rows` with penalties, and the counts whose memory the rows point to."""

    rows: NDArray[np.void]
    counts: Sequence[TokenCounts]


def compiled_rows(slices: Sequence[Slice]) -> CompiledRows | None:
    """Return the rows with which a CPU's kernel samples after these slices, or None if it cannot do so for all."""
    if not all(NEEDS_PYTORCH.isdisjoint(item.params.used) for item in slices):
        return None
    rows = kernel_rows(slices, Kernels.row_type())
    penalized = [row for row, item in enumerate(slices) if not item.params.used.isdisjoint(PENALTIES)]
    counts = [counted(slices[row]) for row in penalized]
    for row, found in zip(penalized, counts, strict=True):
        (ids, n), (outputs, _) = found.ids.buffer_info(), found.outputs.buffer_info()
        penalties = [getattr(slices[row].params, name) for name in PENALTIES]
        rows[["ids", "outputs", "n_ids", *PENALTIES]][row] = (ids, outputs, n, *penalties)
    return CompiledRows(rows, counts)


def plain_tokens(sampled: Sequence[Sampled], views: Sequence[Sequence[Slice]]) -> list[int] | None:
    """Return the token of each slice, if each has one, and nothing else has to be reported."""
    ids = [some.ids() for some in sampled]
    tokens = list(chain.from_iterable(filter(None, ids)))
    plain = None not in ids and len(tokens) == len(views) and all(map(len, views))
    return tokens if plain and tokens and min(tokens) >= 0 else None


def accepted(
    item: Slice, sampled: list[tuple[int, TokenLogprob | None]]
) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
    """Return the sampled tokens up to the first that differs from the draft, and their logprobs."""
    if item.n_draft:
        draft = item.tokens[item.stop - item.n_draft : item.stop]
        agree = takewhile(lambda pair: pair[0] == pair[1][0], zip(draft, sampled, strict=False))
        sampled = sampled[: sum(1 for _ in agree) + 1]
    return tuple([token for token, _ in sampled]), tuple([logprob for _, logprob in sampled if logprob is not None])


def unimplemented(last: Sequence[SamplingStep], chosen: frozenset[str], reported: Set[str]) -> set[str]:
    """Return the parameters of the table without a step, but for the distribution's `chosen` ones and `reported`."""
    stages = (Stage.LOGITS, Stage.DISTRIBUTION, Stage.REPORT)
    needed = {name for name, row in PARAMETERS.items() if row.stage in stages}
    return needed - reported - chosen.union(*(step.parameters for step in (*LOGITS_STEPS, *last)))
