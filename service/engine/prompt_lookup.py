"""Prompt look-up: guess a sequence's next tokens from earlier ones (arXiv 2304.04487), and how many guesses pay."""

from collections.abc import Sequence
from itertools import cycle, islice

NGRAM = 2
"""Tokens that must repeat before what followed them is proposed. Three or four gave less on corrected prose."""
STEP_ROWS = 5.0
"""What a step costs beside its rows, in rows. Measured for int8 on two cores, where a row costs most in relation: 9
greedy, 4 with top_p. Too small a number proposes too little, which loses less than a draft in vain."""
FIRST_TRUST = 0.25
TRUST_RATE = 1 / 8


class Lookup:
    """Finds the latest earlier occurrence of the last tokens, proposes what followed, learns how often that is right.

    Guesses are judged whether or not they were computed as a draft, so finding out costs nothing. O(1) a token.
    """

    def __init__(self) -> None:
        self.trust = FIRST_TRUST  # the chance that a guess is right, those before it being right
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its latest occurrence
        self._seen = NGRAM
        self._guesses: list[int] = []

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """The next tokens, up to `most`, by analogy; a repetition goes on repeating. `tokens` only ever grows."""
        for end in range(self._seen, len(tokens)):
            self._ends[tuple(tokens[end - NGRAM : end])] = end
        self._seen = max(self._seen, len(tokens))
        end = self._ends.get(tuple(tokens[-NGRAM:]), len(tokens))
        self._guesses = list(islice(cycle(tokens[end : end + most]), most))
        return self._guesses

    def judge(self, drawn: Sequence[int]) -> None:
        """Compare the latest guesses with what was then drawn."""
        for guess, token in zip(self._guesses, drawn, strict=False):
            self.trust += TRUST_RATE * ((guess == token) - self.trust)
        self._guesses = []


class Stakes:
    """How much of a step's time its rows are worth, as drafts are added to it.

    A step takes `STEP_ROWS` + rows; a guess is right with the chance that it and all before it are. One more row pays
    as long as its chance, for one row's time, is more than the step gives for its time so far. Alone, a sequence may
    so bet on chances of 1 to 6; beside 31 others, hardly on 7 to 8.
    """

    def __init__(self, n_tokens: int) -> None:
        self._rows = self._worth = float(n_tokens)

    def bet(self, trust: float, most: int) -> int:
        """How many guesses to add, at most `most`."""
        n, chance = 0, trust
        while n < most and chance * (STEP_ROWS + self._rows) > self._worth:
            self._rows += 1
            self._worth += chance
            chance *= trust
            n += 1
        return n
