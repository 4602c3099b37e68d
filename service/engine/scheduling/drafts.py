"""Draft tokens: who drafts, and how many tokens pay. Verification is the plain step, so no draft changes a bit."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from model.batch import UNKNOWN
from service.engine.messages import Submit
from service.engine.scheduling.answers import AnswerLookup, Answers, Library
from service.engine.scheduling.prompt_lookup import PromptLookup

ACCEPTANCE_SMOOTHING, SHARED_SMOOTHING = 1 / 16, 1 / 256
"""The weight of the latest token that the runner drafted, in its sequence, and among those of all sequences."""
FIRST_ACCEPTANCE, LEAST_ACCEPTANCE = 0.8, 0.6
"""Of such a token, before the first one, and in a new sequence at least: high enough to try some in each."""


class Drafter(Protocol):
    """Predicts the next tokens of one sequence, and learns how many of them are accepted.

    `name` is that in metrics. Where `has_passes`, the runner finds the tokens: each costs a pass over other weights.
    """

    name: str
    has_passes: bool

    def draft(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """Predict up to `n_tokens` tokens after `tokens`, which only ever grow."""
        ...

    def observe(self, sampled: Sequence[int], n_verified: int) -> None:
        """Compare the latest draft, of which the step verified so many tokens, with the tokens that it sampled."""
        ...

    @property
    def chances(self) -> list[float]:
        """Return for each token of the latest draft the chance that it is accepted if all before it are."""
        ...


class Draft(NamedTuple):
    """Draft tokens of a sequence, which may be UNKNOWN, and whose they are."""

    drafter: Drafter
    tokens: tuple[int, ...]


class Shared:
    """The share of the runner's draft tokens that was accepted lately, in all sequences."""

    def __init__(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE


class OwnDrafts:
    """Leaves the draft to the runner, which computes it with a narrower copy of the weights, or with a draft model.

    `shared` is the acceptance in all sequences, from which each begins.
    """

    has_passes = True

    def __init__(self, shared: "Shared", name: str = "self") -> None:
        self.name = name
        self.chances: list[float] = []
        self._shared = shared
        self._acceptance = max(LEAST_ACCEPTANCE, shared.acceptance)

    def draft(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """Return places for the tokens. The chance of one hardly depends on its depth."""
        self.chances = [self._acceptance] * n_tokens
        return [UNKNOWN] * n_tokens

    def observe(self, sampled: Sequence[int], n_verified: int) -> None:
        """Count the accepted tokens, and the one that was not."""
        for n in range(1, min(n_verified, len(sampled)) + 1):
            self._acceptance += ACCEPTANCE_SMOOTHING * ((n < len(sampled)) - self._acceptance)
            self._shared.acceptance += SHARED_SMOOTHING * ((n < len(sampled)) - self._shared.acceptance)


class Drafters:
    """The drafters of one engine. `n_own` is the greatest number of tokens that the runner drafts, `name` says how."""

    def __init__(self, n_own: int = 0, name: str = "self") -> None:
        self._n_own, self._name = n_own, name
        self._library = Library()
        self._shared = Shared()

    def of(self, submit: Submit, seed: bytes) -> tuple[list[tuple[Drafter, int]], Answers | None]:
        """Return those of a sequence, each with its greatest number of tokens, and the answers that its own joins.

        Only requests of its tenant whose pages begin with the same `seed` draft from it.
        """
        drafters: list[tuple[Drafter, int]] = []
        answers = None
        if n := submit.params.prompt_lookup_num_tokens:
            answers = self._library.of(submit.tenant, seed)
            placeholder = submit.prompt[submit.media[0].start] if submit.media else None
            drafters += (PromptLookup(placeholder), n), (AnswerLookup(answers), n)
        if self._n_own:
            drafters.append((OwnDrafts(self._shared, self._name), self._n_own))
        return drafters, answers


GAIN, PASS_GAIN = 2, 1.1
"""A draft token must give this many times the tokens that its row costs: costs and chances are estimates. With 1, chats
of 8 and 32 streams lose 2 to 4 %. A pass, whose cost is measured, must give so many times the tokens of its cost."""


class DraftBudget:
    """Expected tokens of one step against its cost, as draft tokens are added to it.

    `n_tokens` are sampled without drafts. A step costs as many rows, and `fixed_rows` more; the rows of prompts beside
    them do not count. A draft token adds one row, and gives a token with the chance that it and all before it are
    accepted. It pays as long as that chance is more than GAIN times the tokens per cost of the step so far. With 10
    fixed rows, a sequence alone may add draft tokens with chances down to 2 in 11; beside 31 others it adds none.
    A pass of narrow weights costs `pass_rows`, and gives one draft token to each sequence that takes part.
    """

    def __init__(self, n_tokens: int, fixed_rows: float, pass_rows: float = 0.0) -> None:
        self._n_tokens = max(1, n_tokens)
        self._expected = float(n_tokens)
        self._cost = fixed_rows + n_tokens
        self._pass_rows = pass_rows

    @property
    def is_spent(self) -> bool:
        """Return whether not even a token that is certain, and that costs one row, pays."""
        return self._cost <= GAIN * self._expected

    def best_rate(self, chances: Iterable[float], *, has_passes: bool) -> float:
        """Return the greatest number of tokens for the cost of a sequence's part of the step, over all lengths."""
        cost, expected, chance = self._cost / self._n_tokens, 1.0, 1.0
        each = 1 + has_passes * self._pass_rows / self._n_tokens
        best = expected / cost
        for accepted in chances:
            chance *= accepted
            expected, cost = expected + chance, cost + each
            best = max(best, expected / cost)
        return best

    def add(self, chances: Iterable[float]) -> int:
        """Add the draft tokens of a sequence that pay; returns how many. A chance holds if all before are accepted."""
        n_tokens, chance = 0, 1.0
        for accepted in chances:
            chance *= accepted
            if chance * self._cost <= GAIN * self._expected:
                break
            self._cost += 1
            self._expected += chance
            n_tokens += 1
        return n_tokens

    def add_passes(self, offers: Sequence[Sequence[float]]) -> list[int]:
        """Add the passes that pay, for sequences with these chances; returns the draft tokens of each."""
        lengths, chances = [0] * len(offers), [1.0] * len(offers)
        for n in range(max(map(len, offers), default=0)):
            taking = [i for i, offer in enumerate(offers) if len(offer) > n == lengths[i]]
            gains = {i: chances[i] * offers[i][n] for i in taking}
            gains = {i: gain for i, gain in gains.items() if gain * self._cost > PASS_GAIN * self._expected}
            gain, cost = sum(gains.values()), self._pass_rows + len(gains)
            if not gains or gain * self._cost <= PASS_GAIN * self._expected * cost:
                break
            self._cost, self._expected = self._cost + cost, self._expected + gain
            for i in gains:
                lengths[i], chances[i] = n + 1, gains[i]
        return lengths
