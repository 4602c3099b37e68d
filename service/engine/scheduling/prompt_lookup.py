"""Prompt lookup: draft a sequence's next tokens from its earlier ones (arXiv 2304.04487), as many as pay."""

from collections.abc import Sequence
from itertools import cycle, islice

NGRAM = 2
"""Tokens that must repeat before the tokens after them become a draft. Three or four gave less on corrected prose."""
STEP_ROWS = 5.0
"""Fixed cost of a step, in rows. It was measured for int8 on two cores, where the relative cost of a row is greatest: 9
greedy, 4 with top_p. With a number that is too small there are fewer drafts, which costs less than rejected drafts."""
FIRST_ACCEPTANCE = 0.25
ACCEPTANCE_SMOOTHING = 1 / 8


class PromptLookup:
    """Drafts the tokens that followed the latest earlier occurrence of the last ones, and learns how many are accepted.

    It compares drafts that were never computed as well, because that costs nothing. O(1) a token. No draft has the
    token `image`, which stands for embeddings in a prompt: what followed it there follows it in no answer.
    """

    def __init__(self, image: int | None = None) -> None:
        self._image = image
        self.acceptance = FIRST_ACCEPTANCE  # chance that a draft token is accepted if all before it are
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its latest occurrence
        self._n_indexed = NGRAM
        self._draft: list[int] = []

    def draft(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """Up to `n_tokens` draft tokens after `tokens`, which only ever grow. A repetition is continued."""
        for end in range(self._n_indexed, len(tokens)):
            if tokens[end] != self._image:
                self._ends[tuple(tokens[end - NGRAM : end])] = end
        self._n_indexed = max(self._n_indexed, len(tokens))
        end = self._ends.get(tuple(tokens[-NGRAM:]), len(tokens))
        followed = tokens[end : end + n_tokens]
        if self._image in followed:
            followed = followed[: followed.index(self._image)]
            n_tokens = len(followed)
        self._draft = list(islice(cycle(followed), n_tokens))
        return self._draft

    def observe(self, sampled: Sequence[int]) -> None:
        """Compare the latest draft with the tokens that were then sampled."""
        for draft, token in zip(self._draft, sampled, strict=False):
            self.acceptance += ACCEPTANCE_SMOOTHING * ((draft == token) - self.acceptance)
        self._draft = []


class DraftBudget:
    """Expected tokens of one step against its cost, as draft tokens are added to it.

    A step costs `STEP_ROWS` + its rows. A draft token adds one row, and gives a token with the chance that it and all
    before it are accepted. It pays as long as that chance is more than the tokens per cost of the step so far. A
    sequence alone may add draft tokens with chances down to 1 in 6; beside 31 others it needs 7 in 8.
    """

    def __init__(self, n_tokens: int) -> None:
        self._rows = self._expected = float(n_tokens)

    def add(self, acceptance: float, limit: int) -> int:
        """Draft tokens that pay for one sequence, at most `limit`; they are added to the step."""
        n_tokens, chance = 0, acceptance
        while n_tokens < limit and chance * (STEP_ROWS + self._rows) > self._expected:
            self._rows += 1
            self._expected += chance
            chance *= acceptance
            n_tokens += 1
        return n_tokens
