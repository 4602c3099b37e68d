"""Logits to tokens: ordered steps, each only for the rows that use its parameters, then one token for each row.

Order: logprobs of the model's own distribution; hidden tokens, logit_bias, penalties, grammars; greedy rows take the
greatest logit (lowest id on ties); temperature, min_p, top_k, top_p; one sampled token. The noise of sampling depends
only on (seed, choice, output index, token): a row's result does not depend on other rows, the batch or a retry.
Nothing waits for the device: sampled tokens stay there for the next step, and `Sampled.read` waits for their copy.
"""

from collections.abc import Mapping, Sequence, Set

from torch import Tensor

from model.batch import Slice, TokenLogprob
from model.machine.transfers import Fetch
from model.sampling_params import PARAMETERS, Stage
from model.step.distribution import DISTRIBUTION_STEPS, RACED, choose
from model.step.logits import LOGITS_STEPS, SamplingStep, apply, rows_of
from model.step.logprobs import Scores, log_softmax


class Sampled:
    """Tokens, NO_TOKEN or NOT_FINITE, after N slices: `tokens` [N] int64 on the device. Also requested logprobs."""

    def __init__(self, tokens: Tensor, scores: Mapping[int, int], scored: "Scores | None") -> None:
        self.tokens = tokens
        self._fetch = Fetch(tokens)
        self._scores = scores  # row -> place in `scored`
        self._scored = scored

    def read(self) -> list[tuple[int, TokenLogprob | None]]:
        """Wait for the device."""
        logprobs = self._scored.read() if self._scored else []
        ids = self._fetch.wait().tolist()
        return [(token, logprobs[self._scores[row]] if row in self._scores else None) for row, token in enumerate(ids)]


def sample(logits: Tensor, slices: Sequence[Slice], last: Sequence[SamplingStep] = ()) -> Sampled:
    """One token after each slice, from logits [N, vocab_size] float32, which are overwritten.

    `last` are the last steps on the logits.
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


def unimplemented(last: Sequence[SamplingStep], reported: Set[str]) -> set[str]:
    """Parameters of the table that no step implements, or that request a report that is not `reported`."""
    steps = (*LOGITS_STEPS, *last, *DISTRIBUTION_STEPS)
    stages = (Stage.LOGITS, Stage.DISTRIBUTION, Stage.REPORT)
    needed = {name for name, row in PARAMETERS.items() if row.stage in stages}
    return needed - reported - RACED.union(*(step.parameters for step in steps))
