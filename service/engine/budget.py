"""The number of tokens that a step may have: prompt tokens beside the sequences that decode, and all together.

A step delays the next token of each of these by its whole length. The engine learns from each step what its rows cost.
A step may take the target between two tokens, or `STRETCH` times as long as decoding would take if all sequences
decoded, those that wait too. Prompts get what the sequences that decode now leave. If only running answers
counted, a few of them would keep prompts slow, and so would stay few. Without decoding sequences only the pace of the
machine limits the prompts: no step may take so long that the watchdog takes the engine for hung.
"""

from math import inf, sqrt
from operator import mul
from typing import NamedTuple

TYPICAL = (1, 12, 32, 32 * 2048)
"""A step that reads the weights takes as long as so many decoding rows add to it, or prompt tokens, or pairs of a
prompt token and a key. A rough scale, and the guess before the first step in which sequences decode."""
INDEXES = range(len(TYPICAL))
TOGETHER, ALONE = 0.02, 0.005
"""Drift of the cost from step to step: of all coefficients together, as others use the machine, and of each alone."""
NOISE = 0.1
"""How much the seconds of a step differ from its cost by chance. Relative, as the drift."""
LONGEST = 1.5
"""A step counts as so many times its expected seconds at most: one that takes longer was held up by something else. It
counts as the inverse at least: the result of one that seems to take less was there before."""
LEAST_SHARE = 0.01
"""Of a coefficient in their sum, in the scale of `TYPICAL`: nothing is free, whatever a few steps seem to say."""
LEAST_SECONDS = 1e-6
"""Of a step, whatever the clock says: costs that fell for ever would have no square that a float can hold."""
STRETCH = 1.75
"""With twice, steps beside a long prompt were a little more than twice as long as without: see the log of chunks."""
LEAST_TOKENS = 16
"""Prompt tokens of a step at least. For fewer tokens each of them costs more, as the weights are read again."""

SAFE = 4
"""A step is planned to take the deadline divided by this. A measurement raises the limit by this factor at most: one
that is wrong, or a machine that slows down as much, leaves the step within the deadline."""
FIRST_PACE = 1.0
"""Seconds of a token before the first step is measured."""
DOUBLE_DEPTH = 8192
"""The position where a token takes twice as long as at the start of a prompt. Models differ by four either way."""
PATIENCE = 64
"""Steps after which memory may be free again."""


class Cost(NamedTuple):
    """Seconds of a step, of each of its rows that decode, of each of its prompt tokens, and of each pair of a prompt
    token and a key before it. None is negative."""

    step: float = 0.0
    row: float = 0.0
    token: float = 0.0
    pair: float = 0.0

    @property
    def fixed_rows(self) -> float:
        """The number of rows that take as long as a step without rows. Before the first step it is a guess."""
        return self.step / self.row if self.row else TYPICAL[1]

    def seconds(self, rows: float, tokens: float, pairs: float = 0.0) -> float:
        return self.step + self.row * rows + self.token * tokens + self.pair * pairs

    def prompt_tokens(self, target: float, rows: int, sequences: int, depth: float = 0.0) -> int | None:
        """Prompt tokens for a step in which `rows` of the `sequences` decode. None if nothing limits them.

        The step may take `target` seconds. The prompt goes on at position `depth`.
        Worked example: 16 rows alone take 10 ms, 20 take 12 ms, a prompt token 0.2 ms. A target of 20 ms leaves 10 ms.
        But if 4 sequences wait beside the 16, 1.75 times 12 ms leave prompts 11 ms: 55 tokens. Pairs of 0.1 us make a
        token at position 2000 twice as dear, which leaves 27.
        """
        if not target or not rows or not self.token:
            return None
        longest = max(target, STRETCH * self.seconds(max(rows, sequences), 0))
        left = longest - self.seconds(rows, 0)
        first = self.token + self.pair * depth  # n tokens take n first + n n pair / 2
        return max(LEAST_TOKENS, int(2 * left / (first + sqrt(first * first + 2 * self.pair * left))))


class StepCost:
    """The cost of steps, learnt from each of them: a Kalman filter whose state are the coefficients.

    Steps beside which prompts are always computed do not tell what decoding costs. Then the drift decides: a step that
    took longer than expected makes all coefficients dearer, rather than one alone.
    """

    def __init__(self) -> None:
        self._cost = [0.0 for _ in INDEXES]  # in the scale of TYPICAL
        self._errors: list[list[float]] = []  # their covariances, once a sequence has decoded

    @property
    def now(self) -> Cost:
        """All zeros before the first step."""
        return Cost(*[value / typical for value, typical in zip(self._cost, TYPICAL, strict=True)])

    def note(self, rows: int, tokens: int, pairs: float, seconds: float) -> None:
        """A step with so many rows that decode, prompt tokens, and pairs of these and keys, took so long.

        The seconds are those from the end of the step before, as a client sees them. Steps in which nothing decodes are
        the first guess, and are not learnt from after that: no limit needs them, and their tokens cost less.
        """
        amounts = [count / typical for count, typical in zip((1, rows, tokens, pairs), TYPICAL, strict=True)]
        if not self._errors:
            self._cost = [max(seconds, LEAST_SECONDS) / sum(amounts) for _ in INDEXES]
        if rows:
            self._drift()
            self._learn(amounts, max(seconds, LEAST_SECONDS))

    def _drift(self) -> None:
        """Make each coefficient less certain. Before the first step each may be wrong by as much as it is.

        Later each may be wrong by as much as their sum: floats cannot subtract the certainty of steps of milliseconds
        from the variance that a first step of minutes left.
        """
        errors = self._errors or [[float(a == b) * self._cost[a] ** 2 for b in INDEXES] for a in INDEXES]
        most = sum(self._cost)
        shares = [min(1.0, most / sqrt(errors[a][a])) for a in INDEXES]
        for a, line in enumerate(errors):
            for b, other in enumerate(self._cost):
                drift = self._cost[a] * other * (TOGETHER**2 + (a == b) * ALONE**2)
                line[b] = line[b] * (shares[a] * shares[b]) + drift
        self._errors = errors

    def _learn(self, amounts: list[float], seconds: float) -> None:
        expected = _dot(self._cost, amounts)
        error = min(max(seconds, expected / LONGEST), expected * LONGEST) - expected
        shares = [_dot(line, amounts) for line in self._errors]
        total = _dot(shares, amounts) + (NOISE * expected) ** 2
        found = [value + share / total * error for value, share in zip(self._cost, shares, strict=True)]
        least = LEAST_SHARE * sum(value for value in found if value > 0)
        self._cost = [max(value, least) for value in found]
        self._errors = [[self._errors[a][b] - shares[a] * shares[b] / total for b in INDEXES] for a in INDEXES]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(map(mul, a, b))


class Pace:
    """The seconds that a token takes, by the latest step, and the tokens of a step that is to end within a deadline.

    A larger step takes less for each token, because it reads the weights once. So the limit errs to the safe side.
    """

    def __init__(self, deadline: float = inf) -> None:
        self._seconds = deadline / SAFE
        self._pace = FIRST_PACE

    def note(self, tokens: float, pairs: float, seconds: float) -> None:
        """A step with so many tokens, and pairs of a prompt token and a key before it, took so long."""
        measured = max(seconds, LEAST_SECONDS) / (tokens + pairs / DOUBLE_DEPTH)
        self._pace = max(measured, self._pace / SAFE)

    def tokens(self, depth: int) -> float:
        """The tokens of a step whose prompt goes on at position `depth`. May be below 1, or infinite.

        Worked example: a deadline of 60 s allows a step of 15 s. At 0.5 s a token that is 30 tokens at the start of a
        prompt, and 15 at position 8192.
        """
        return self._seconds / (self._pace * (1 + depth / DOUBLE_DEPTH))


class PromptBudget(StepCost):
    """What prompts may take of each step, for a target in seconds between two tokens. A target of 0 limits nothing.

    A sequence without progress for `deadline` seconds counts as hung.
    """

    def __init__(self, target: float = 0.0, deadline: float = inf) -> None:
        super().__init__()
        self.target = target
        self.pace = Pace(deadline)

    def tokens(self, rows: int, sequences: int, depth: int) -> int | None:
        """Prompt tokens of the next steps, together, while `rows` of the `sequences` decode. None: no limit.

        The first prompt goes on at position `depth`.
        """
        return self.now.prompt_tokens(self.target, rows, sequences, depth)

    def step_tokens(self, most: int, least: int, rows: int, sequences: int, depth: int) -> int:
        """All tokens of the next steps, together: from `least` to `most`, as many as target and deadline allow."""
        prompts = self.tokens(rows, sequences, depth)
        tokens = most if prompts is None else min(most, rows + prompts)
        return int(min(tokens, max(least, self.pace.tokens(depth))))


class StepLimit:
    """The greatest number of tokens of a step: `now` is less than `most` after a step that did not fit into memory."""

    def __init__(self, most: int, least: int) -> None:
        self.now = most
        self._most, self._least = most, least
        self._patience = 0

    def lower(self, n_tokens: int) -> None:
        """So many tokens did not fit."""
        self.now, self._patience = max(self._least, n_tokens // 2), PATIENCE

    def count(self) -> None:
        """A step was computed."""
        self._patience -= 1
        if self._patience <= 0:
            self.now, self._patience = min(self._most, 2 * self.now), PATIENCE
