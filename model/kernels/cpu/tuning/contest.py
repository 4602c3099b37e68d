"""Which of several candidates is the fastest: they run in turns. It knows nothing of kernels."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

LEAST_ROUNDS = 3
"""With fewer rounds the default wins."""
GAIN = 0.03
"""The share of the default's time that a product's winner saves at least. The noise of a minimum is less."""
HOPELESS = 1.15
"""A candidate whose minimum of two rounds is so many times the best one's does not run again."""


@dataclass(slots=True)
class Contest:
    """Candidates for one decision; number 0 is the default. `run(i)` computes once with candidate i.

    A winner saves the share `gain` of the default's time at least. `times` are the seconds of each candidate that is
    still in it, in the order of the rounds.
    """

    n: int
    run: Callable[[int], object]
    gain: float = GAIN
    times: dict[int, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.times = {candidate: [] for candidate in range(self.n)}

    def hold_round(self, clock: Callable[[], float]) -> None:
        """Run each candidate once, another one first than before. They follow each other and meet the same noise."""
        for candidate in self._order():
            begin = clock()
            self.run(candidate)
            self.times[candidate].append(clock() - begin)
        if len(self.times[0]) < 2:
            return
        bound = HOPELESS * min(map(min, self.times.values()))
        self.times = {i: times for i, times in self.times.items() if i == 0 or min(times) <= bound}

    def _order(self) -> Iterator[int]:
        candidates = list(self.times)
        first = len(self.times[0]) % len(candidates)
        return iter(candidates[first:] + candidates[:first])

    @property
    def is_decided(self) -> bool:
        """Whether there were enough rounds."""
        return len(self.times[0]) >= LEAST_ROUNDS

    @property
    def winner(self) -> int:
        """The candidate with the least minimum, if that is clearly less than the default's, and its median less too.

        Another program can only lengthen a run: one undisturbed run of each is enough for the minimum.
        """
        if not self.is_decided:
            return 0
        best = min(self.times, key=lambda i: min(self.times[i]))
        is_clear = min(self.times[best]) <= (1 - self.gain) * min(self.times[0])
        return best if is_clear and median(self.times[best]) < median(self.times[0]) else 0


def hold(
    contests: Sequence[Contest], rounds: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> None:
    """Hold so many rounds of all contests, or as many as begin within `seconds`."""
    end = clock() + seconds
    for _ in range(rounds):
        for contest in contests:
            if clock() >= end:
                return
            contest.hold_round(clock)
