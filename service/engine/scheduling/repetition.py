"""The detection of repetitions: whether an output ends with several copies of a pattern of tokens."""

from collections.abc import Iterable

from model.sampling_params import RepetitionDetection


class Repetition:
    """A detector that compares each token of an output with the same tokens shortly before it.

    With 7 1 2 1 2 1 as the output, the last 3 tokens equal those 2 before them: a run of 3 at distance 2. Together with
    the first copy, these are `min_count` copies once the run has `(min_count - 1) * 2` tokens. A token costs
    one look at each place where it is among the last `max_pattern_size` tokens. `output` are the tokens so far.
    """

    def __init__(self, rule: RepetitionDetection, output: Iterable[int] = ()) -> None:
        self._sizes = range(max(rule.min_pattern_size, 1), rule.max_pattern_size + 1)
        self._more = rule.min_count - 1  # copies after the first
        self._latest: dict[int, int] = {}  # token -> its latest place in the output
        self._earlier: list[int] = []  # for a place, that of the same token before it; -1 is none
        self._runs: dict[int, int] = {}  # distance -> how many of the latest tokens equal those at that distance
        for token in output:
            self.observe(token)

    def observe(self, token: int) -> bool:
        """Add the next token; returns whether the output now ends with enough copies of a pattern."""
        here, runs, found = len(self._earlier), {}, False
        place = self._latest.get(token, -1)
        self._latest[token] = here
        self._earlier.append(place)
        while place >= 0 and (distance := here - place) < self._sizes.stop:
            if distance >= self._sizes.start:
                run = runs[distance] = self._runs.get(distance, 0) + 1
                found = found or run >= distance * self._more
            place = self._earlier[place]
        self._runs = runs
        return found
