"""The number of prompt tokens that a step may have beside the sequences that decode.

A step delays the next token of each of these by its whole length. The engine learns from each step what its rows cost.
It gives prompts as many tokens as fit the target between two tokens, and at least half of the step's time: prompts
then make the steps at most twice as long as decoding alone. Without decoding sequences nothing limits the prompts.
"""

from typing import NamedTuple

GAIN = 0.3
"""The part of its error by which a step corrects the cost of steps. The first steps correct more."""
TYPICAL_ROWS, TYPICAL_TOKENS = 8, 32
"""A step that reads the weights takes as long as so many decoding rows, or prompt tokens, add to it. A rough scale."""
LONGEST = 2.0
"""A step counts as so many times its expected seconds at most: one that takes longer was held up by something else."""
LEAST_TOKENS = 32
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
    """The cost of steps, learnt from each of them by normalized least mean squares (Widrow and Hoff, 1960).

    Each step moves the estimate by the least change that makes its error smaller. What a step says nothing about, such
    as the cost of prompt tokens if it has none, stays.
    """

    def __init__(self) -> None:
        self._scaled = (0.0, 0.0, 0.0)
        self._n = 0

    @property
    def now(self) -> Cost:
        """All zeros before the first step."""
        step, row, token = self._scaled
        return Cost(step, row / TYPICAL_ROWS, token / TYPICAL_TOKENS)

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        """A step with so many rows that decode, and so many prompt tokens, took so long.

        The seconds are those from the end of the step before, as a client sees them.
        """
        counts = (1.0, rows / TYPICAL_ROWS, tokens / TYPICAL_TOKENS)
        expected = sum([count * value for count, value in zip(counts, self._scaled, strict=True)])
        error = (min(seconds, LONGEST * expected) if self._n else seconds) - expected
        self._n += 1
        change = max(GAIN, 1 / self._n) * error / sum([count * count for count in counts])
        step, row, token = [max(0.0, value + change * count) for count, value in zip(counts, self._scaled, strict=True)]
        self._scaled = step, row, token


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
