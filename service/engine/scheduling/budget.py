"""The number of tokens that a step may have: prompt tokens beside the sequences that decode, and all together.

A step delays the next token of each sequence that decodes by its whole length. Two targets bound that: prompts get what
decoding leaves of the target between two tokens. They get more if a waiting prompt needs more for the target of its
first token: its chunks grow as its time runs out. If the first token would be late even so, nothing limits the step,
because then the largest steps serve all requests soonest. Images and audio take seconds however large the steps are:
they get what decoding leaves, half of it while text waits for tokens, and no more. Without decoding sequences only the
pace of the machine limits the prompts: no step may take so long that the watchdog takes the engine for hung.
"""

from collections.abc import Iterable
from math import inf

DOUBLE_DEPTH = 8192
"""The position where a token takes twice as long as at the start of a prompt. Models differ by four either way."""
DECODE_WEIGHT, TOKEN_WEIGHT = 1 / 32, 1 / 8
"""The weight of the latest step in the moving averages, for decoding and for prompts. The first steps weigh more."""
TYPICAL_ROWS = 12
"""A step takes as long as so many of its rows add to it: the guess while all steps have the same number of rows."""
LONGEST = 2
"""A step counts as so many times its expected seconds at most: one that takes longer was held up by something else."""
LEAST_SHARE = 0.01
"""The seconds of a row are at least this part of the guess: nothing is free, whatever a few steps seem to say."""
LEAST_SECONDS = 1e-6
"""Of a step, whatever the clock says."""
LEAST_TOKENS = 12
"""Prompt tokens of a step at least. For fewer tokens each of them costs more, as the weights are read again."""

SAFE = 4
"""A step is planned to take the deadline divided by this. A measurement raises the limit by this factor at most: one
that is wrong, or a machine that slows down as much, leaves the step within the deadline."""
FIRST_PACE = 1.0
"""Seconds of a token before the first step is measured."""
PATIENCE = 64
"""Steps after which memory may be free again."""


def prompt_work(n_tokens: float, n_pairs: float) -> float:
    """Return the work on prompt tokens, in tokens at the start of a prompt. Deep ones cost more.

    `n_pairs` is the number of pairs of one of them and a key before it.
    """
    return n_tokens + n_pairs / DOUBLE_DEPTH


def _slowdown(depth: int) -> float:
    """Return how many times as long a token takes at this position as at the start of a prompt."""
    return 1 + depth / DOUBLE_DEPTH


class StepCost:
    """The seconds of steps, as moving averages: a line over the rows of steps that only decode, and a prompt token.

    `token` is 0 before the first prompt was computed. Draft tokens of the runner cost passes.
    """

    def __init__(self) -> None:
        self.token = 0.0
        self._pass = 0.0
        self._weight = self._token_weight = 1.0  # of the next step
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0  # of the rows, and of rows and seconds

    @property
    def row(self) -> float:
        """Return the seconds of one more row: the slope of the line, guessed where the number of rows hardly varies."""
        guess = self._seconds / (self._rows + TYPICAL_ROWS)
        slope = (self._covariance + guess) / (self._variance + 1)
        return min(max(slope, LEAST_SHARE * guess), self._seconds / max(self._rows, 1))

    @property
    def fixed_rows(self) -> float:
        """Return the number of rows that take as long as a step without rows."""
        return self.decode(0) / self.row if self.row else TYPICAL_ROWS

    @property
    def pass_rows(self) -> float:
        """Return the number of rows that take as long as a pass of narrow weights: half of a step, as a first guess."""
        return self._pass / self.row if self._pass and self.row else self.fixed_rows / 2

    def note_passes(self, n_passes: int, seconds: float) -> None:
        """Record how long the passes of a step took."""
        each = seconds / n_passes
        self._pass += TOKEN_WEIGHT * (min(each, LONGEST * self._pass) - self._pass) if self._pass else each

    def decode(self, rows: float) -> float:
        """Return the seconds of a step of so many rows that decode, without prompts; 0 before the first such step."""
        return max(0.0, self._seconds + self.row * (rows - self._rows))

    def note(self, rows: int, tokens: int, pairs: float, seconds: float) -> None:
        """Record how long a step took: its rows that decode, its prompt tokens, and pairs of these and keys.

        The seconds count from the end of the step before, as a client sees them. Steps in which nothing decodes give
        the first guess only: no limit needs them, and their tokens cost less.
        """
        if not tokens:
            self._note_decode(rows, max(seconds, LEAST_SECONDS))
        elif rows or not self.token:
            found = max(seconds - self.decode(rows), LEAST_SECONDS) / prompt_work(tokens, pairs)
            before = self.token or found
            self.token = before + self._token_weight * (min(max(found, before / LONGEST), before * LONGEST) - before)
            self._token_weight = _later(self._token_weight, TOKEN_WEIGHT) if rows else 1.0

    def _note_decode(self, rows: int, seconds: float) -> None:
        if self._seconds:
            seconds = min(seconds, LONGEST * self.decode(rows))
        more_rows, more_seconds, old = rows - self._rows, seconds - self._seconds, 1 - self._weight
        self._rows += self._weight * more_rows
        self._seconds += self._weight * more_seconds
        self._variance = old * (self._variance + self._weight * more_rows * more_rows)
        self._covariance = old * (self._covariance + self._weight * more_rows * more_seconds)
        self._weight = _later(self._weight, DECODE_WEIGHT)


def _later(weight: float, least: float) -> float:
    """Return the weight of the next step in a mean of all steps (1, 1/2, 1/3, ...), but at least `least`."""
    return max(weight / (1 + weight), least)


class StepPace:
    """The seconds that a token takes, by the latest step, and the tokens of a step that is to end within a deadline.

    A larger step takes less for each token, because it reads the weights once. So the limit errs to the safe side.
    """

    def __init__(self, deadline: float = inf) -> None:
        self._seconds = deadline / SAFE
        self._pace = FIRST_PACE

    def note(self, tokens: float, pairs: float, seconds: float) -> None:
        """Record how long a step took, by its tokens, and pairs of a prompt token and a key before it."""
        measured = max(seconds, LEAST_SECONDS) / prompt_work(tokens, pairs)
        self._pace = max(measured, self._pace / SAFE)

    def tokens(self, depth: int) -> float:
        """Return the tokens of a step whose prompt goes on at position `depth`. May be below 1, or infinite.

        Worked example: a deadline of 60 s allows a step of 15 s. At 0.5 s a token that is 30 tokens at the start of a
        prompt, and 15 at position 8192.
        """
        return self._seconds / (self._pace * _slowdown(depth))


class PromptBudget:
    """The share of prompts in each step, for targets in seconds of the first token, and between two tokens.

    A target of 0 limits nothing. A sequence without progress for `deadline` seconds counts as hung. `strictest` is the
    target between two tokens of the sequences that decode now.
    """

    def __init__(self, first: float = 0.0, between: float = 0.0, deadline: float = inf) -> None:
        self.first, self.between = first, between
        self.strictest = between
        self.cost = StepCost()
        self.pace = StepPace(deadline)

    def spare(self, rows: int, depth: int) -> float:
        """Return the prompt tokens of the next steps, together, that decoding leaves of the target between two tokens.

        `rows` sequences decode beside them. The first prompt goes on at position `depth`. Infinite: no limit.
        """
        if not (rows and self.strictest and self.cost.token):
            return inf
        left = (self.strictest - self.cost.decode(rows)) / self.cost.token
        return max(LEAST_TOKENS, left / _slowdown(depth))

    def tokens(self, rows: int, depth: int, waiting: Iterable[tuple[float, float]]) -> float:
        """Return the prompt tokens of the next steps, together: what decoding leaves, or more for first tokens.

        `waiting` has for each prompt, in the order of their service, the seconds since it came and the work that is
        left. The other parameters are those of `spare`.
        """
        spare = self.spare(rows, depth)
        return max(spare, self._needed(rows, waiting) / _slowdown(depth)) if self.first and spare < inf else spare

    def _needed(self, rows: int, waiting: Iterable[tuple[float, float]]) -> float:
        """Return the work on prompts in each step, so that all first tokens are in time. Infinite if one will be late.

        Worked example: decoding takes 10 ms a step, a prompt token 0.2 ms. A prompt of 250 tokens has 300 ms, of which
        it needs 50. The other 250 ms are 25 steps of decoding: 10 tokens in each. After 200 ms the same prompt would
        have 5 steps left, of 50 tokens, and after 250 ms none.
        """
        decode, most, together = self.cost.decode(rows), 0.0, 0.0
        for waited, work in waiting:
            together += work
            steps = (self.first - waited - together * self.cost.token) // max(decode, LEAST_SECONDS)
            if steps < 1:
                return inf
            most = max(most, together / steps)
        return most

    def step_tokens(self, most: int, least: int, rows: int, depth: int, waiting: Iterable[tuple[float, float]]) -> int:
        """Return all tokens of the next steps, together: `least` to `most`, as targets and deadline allow."""
        tokens = min(most, rows + self.tokens(rows, depth, waiting))
        return int(min(tokens, max(least, self.pace.tokens(depth))))


class StepLimit:
    """The greatest number of tokens of a step: `now` is less than `most` after a step that did not fit into memory."""

    def __init__(self, most: int, least: int) -> None:
        self.now = most
        self._most, self._least = most, least
        self._patience = 0

    def lower(self, n_tokens: int) -> None:
        """Set the limit to half of the tokens that did not fit."""
        self.now, self._patience = max(self._least, n_tokens // 2), PATIENCE

    def count(self) -> None:
        """Count a step that was computed. After `PATIENCE` of them the limit doubles."""
        self._patience -= 1
        if self._patience <= 0:
            self.now, self._patience = min(self._most, 2 * self.now), PATIENCE
