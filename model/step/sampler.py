"""Logits to tokens: ordered steps, each paid for only by the rows that need it, then one choice a row.

Order: logprobs of the model's own distribution; tokens hidden, logit_bias, penalties, grammars; greedy rows take the
greatest logit (lowest id on ties); temperature, min_p, top_k, top_p; a choice whose noise depends on (seed, choice,
output index, token) alone. So a row's result depends on no other row, batch or retry. Nothing waits for the device:
what is drawn stays there for the next step, and `Sampled.read` waits for its copy.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from model.batch import Slice, TokenLogprob
from model.machine.transfers import Fetch
from model.sampling_params import PARAMETERS, Stage
from model.step.distribution import DISTRIBUTION_STEPS, RACED, choose
from model.step.logits import LOGITS_STEPS, SamplingStep, apply, rows_of
from model.step.logprobs import Scores, log_softmax


class Sampled:
    """One token, or NO_TOKEN, after each of N slices: `tokens` [N] int64 on the device, and logprobs where wanted."""

    def __init__(self, tokens: Tensor, scores: Mapping[int, int], scored: "Scores | None") -> None:
        self.tokens = tokens
        self._fetch = Fetch(tokens)
        self._scores = scores  # row -> place in `scored`
        self._scored = scored

    def read(self) -> list[tuple[int, TokenLogprob | None]]:
        logprobs = self._scored.read() if self._scored else []
        ids = self._fetch.wait().tolist()
        return [(token, logprobs[self._scores[row]] if row in self._scores else None) for row, token in enumerate(ids)]


def sample(logits: Tensor, slices: Sequence[Slice], last: Sequence[SamplingStep] = ()) -> Sampled:
    """Sample after each slice; `last` are steps to take just before the choice.

    logits [N, vocab_size] float32 are overwritten.
    """
    wanted = [row for row, item in enumerate(slices) if item.params.logprobs is not None]
    own = log_softmax(rows_of(logits, wanted)) if wanted else None
    apply((*LOGITS_STEPS, *last), logits, slices)
    tokens = choose(logits, slices)
    scored = None
    if own is not None:
        counts = [slices[row].params.logprobs or 0 for row in wanted]
        scored = Scores(own, rows_of(tokens, wanted).clamp(min=0), counts)
    return Sampled(tokens, {row: place for place, row in enumerate(wanted)}, scored)


def unimplemented(last: Sequence[SamplingStep]) -> set[str]:
    """Parameters that change the sampling and that no step implements: the table and the steps must agree."""
    steps = (*LOGITS_STEPS, *last, *DISTRIBUTION_STEPS)
    changing = {name for name, row in PARAMETERS.items() if row.stage in (Stage.LOGITS, Stage.DISTRIBUTION)}
    return changing - RACED.union(*(step.parameters for step in steps))
