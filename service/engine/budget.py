"""The number of prompt tokens that a step may have beside the sequences that decode.

A step delays the next token of each of these by its whole length. The engine learns from each step what its rows cost.
It gives prompts as many tokens as fit the target between two tokens, and at least half of the step's time: prompts
then make the steps at most twice as long as decoding alone. Without decoding sequences nothing limits the prompts.
"""

from operator import add
from typing import NamedTuple

MEMORY = 0.97
"""The weight of a step in the cost of steps, against the one after it."""
PENALTY = 0.1
"""Of the weight of the latest steps: how strongly the cost is held to what it was."""
FIXED = 1e6
"""The same for the cost of prompt tokens in a step without them: older steps must not change it."""
TYPICAL_ROWS, TYPICAL_TOKENS = 8, 32
"""A step that reads the weights takes as long as so many decoding rows, or prompt tokens, add to it. A rough scale."""
LONGEST = 2.0
"""A step counts as so many times its expected seconds at most: one that takes longer was held up by something else.
One that takes less than its expected seconds over this number weighs no more for that: its result was there before."""
LEAST_TOKENS = 16
"""Prompt tokens of a step at least. For fewer tokens each of them costs more, as the weights are read again."""


class Cost(NamedTuple):
    """Seconds of a step, of each of its rows that decode, and of each of its prompt tokens. None is negative."""

    step: float = 0.0
    row: float = 0.0
    token: float = 0.0

    def seconds(self, rows: float, tokens: float) -> float:
        return self.step + self.row * rows + self.token * tokens

    def prompt_tokens(self, rows: int, target: float) -> int | None:
        """Prompt tokens for a step in which `rows` decode, to take `target` seconds. None if nothing limits them.

        Worked example: 16 rows alone take 11 ms, a prompt token 0.2 ms. A target of 20 ms leaves 9 ms for prompts,
        which get 11, as much as decoding: 55 tokens.
        """
        if not target or not rows or not self.token:
            return None
        decoding = self.seconds(rows, 0)
        return max(LEAST_TOKENS, int(max(target - decoding, decoding) / self.token))


class StepCost:
    """The cost of steps: the least squares of the relative errors of the latest steps.

    Where these say nothing the estimate before stays: a small penalty holds each coefficient to it (ridge regression).
    """

    def __init__(self) -> None:
        self._scaled = [0.0, 0.0, 0.0]
        self._products = [[0.0] * 3 for _ in range(3)]  # of the counts, over squared seconds
        self._sums = [0.0] * 3  # of the counts, over seconds

    @property
    def now(self) -> Cost:
        """All zeros before the first step."""
        step, row, token = self._scaled
        return Cost(step, row / TYPICAL_ROWS, token / TYPICAL_TOKENS)

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        """A step with so many rows that decode, and so many prompt tokens, took so long.

        The seconds are those from the end of the step before, as a client sees them.
        """
        expected = self.now.seconds(rows, tokens)
        if expected:
            seconds = min(seconds, LONGEST * expected)
        scale = max(seconds, expected / LONGEST, 1e-6)
        counts = [count / scale for count in (1.0, rows / TYPICAL_ROWS, tokens / TYPICAL_TOKENS)]
        for a, line in enumerate(self._products):
            self._products[a] = [MEMORY * value + counts[a] * count for value, count in zip(line, counts, strict=True)]
        self._sums = [MEMORY * value + count * seconds / scale for value, count in zip(self._sums, counts, strict=True)]
        weight = self._products[0][0]
        penalties = (PENALTY * weight, PENALTY * weight, (PENALTY if tokens else FIXED) * weight)
        matrix = [
            [value + penalties[a] * (a == b) for b, value in enumerate(line)] for a, line in enumerate(self._products)
        ]
        before = [penalty * value for penalty, value in zip(penalties, self._scaled, strict=True)]
        wanted = list(map(add, self._sums, before))
        self._scaled = [max(0.0, value) for value in _solved(matrix, wanted)]


def _solved(matrix: list[list[float]], wanted: list[float]) -> list[float]:
    """The x of `matrix` [3, 3] times x = `wanted` [3], by elimination. The matrix is positive definite."""
    lines = [[*line, value] for line, value in zip(matrix, wanted, strict=True)]
    for place, pivot in enumerate(lines):
        for other, line in enumerate(lines):
            if other != place:
                factor = line[place] / pivot[place]
                lines[other] = [value - factor * part for value, part in zip(line, pivot, strict=True)]
    return [line[3] / line[place] for place, line in enumerate(lines)]


class PromptBudget:
    """What prompts may take of each step, for a target in seconds between two tokens. A target of 0 limits nothing."""

    def __init__(self, target: float = 0.0) -> None:
        self.target = target
        self._cost = StepCost()
        self.note = self._cost.note

    @property
    def cost(self) -> Cost:
        return self._cost.now

    def tokens(self, rows: int) -> int | None:
        """Prompt tokens of the next steps, together, while `rows` sequences decode. None: no limit."""
        return self.cost.prompt_tokens(rows, self.target)
