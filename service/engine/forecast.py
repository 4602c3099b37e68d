"""Estimates of waiting times: the scheduler replayed with what is known of the sequences and of the cost of steps.

Nobody knows how long an answer will be. The replay takes the median of the latest answers that were longer than this
one is now. Two more replays give the error: with the shortest and the longest tenth, and with faster and slower steps.
A replay counts whole prompts, because what of them is cached is known at admission only. No sequence comes later.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from service.engine.picture import Load, Outlook

FEWEST_ANSWERS = 8
"""With fewer answers to learn from, the extremes are one token and `max_tokens`."""


class Scenario(NamedTuple):
    """The quantile of the lengths of answers, and the factor of the cost of steps."""

    quantile: float
    cost: float


EXPECTED, BEST, WORST = Scenario(0.5, 1.0), Scenario(0.1, 0.8), Scenario(0.9, 1.25)


class Wait(NamedTuple):
    """Seconds from now, and how far that may be wrong."""

    seconds: float
    error: float


class Waits(NamedTuple):
    """The wait of a sequence for its first step and for its first token; None where that is over."""

    start: Wait | None
    first_token: Wait | None


class Forecast:
    """The waits of all sequences of an outlook, by one replay of each scenario."""

    def __init__(self, outlook: Outlook) -> None:
        self._loads = {load.id: load for load in outlook.loads}
        scenarios = (EXPECTED, BEST, WORST) if any(outlook.cost) else ()  # an engine's first step has not ended
        self._replays = [_Replay(outlook, scenario) for scenario in scenarios]
        for replay in self._replays:
            replay.run()

    def knows(self, ids: Collection[int]) -> bool:
        """Whether one of these sequences is in the outlook."""
        return not self._loads.keys().isdisjoint(ids)

    def waits(self, ids: Collection[int], age: float = 0.0) -> Waits:
        """The least waits of these sequences, the choices of one request, `age` seconds after the outlook."""
        loads = [self._loads[number] for number in ids if number in self._loads]
        start = first = None
        if not loads or not self._replays:
            return Waits(None, None)
        if all(load.place is not None for load in loads):
            start = _wait([min(replay.starts[load.id] for load in loads) for replay in self._replays], age)
        if not any(load.generated for load in loads):
            first = _wait([min(replay.firsts[load.id] for load in loads) for replay in self._replays], age)
        return Waits(start, first)


def _wait(times: list[float], age: float) -> Wait:
    expected, *others = times
    return Wait(max(0.0, expected - age), max(abs(other - expected) for other in others))


def remaining(answers: Iterable[int], load: Load, quantile: float) -> int:
    """Number of tokens that a sequence will still generate, by the answers that were longer than it is now."""
    most = load.max_tokens - load.generated
    longer = sorted(min(length - load.generated, most) for length in answers if length > load.generated)
    if len(longer) < FEWEST_ANSWERS and quantile != EXPECTED.quantile:
        return max(1, most if quantile > EXPECTED.quantile else 1)
    return max(1, longer[int(quantile * len(longer))] if longer else most // 2)


@dataclass(slots=True)
class _Item:
    """A sequence in a replay. `begun`: it decodes."""

    load: Load
    begun: bool
    uncomputed: int
    length: int
    left: int  # tokens to generate


class _Replay:
    """Steps of the scheduler, many alike at once. `starts` and `firsts` are times of first steps and tokens, by id."""

    def __init__(self, outlook: Outlook, scenario: Scenario) -> None:
        self.starts: dict[int, float] = {}
        self.firsts: dict[int, float] = {}
        self._outlook = outlook
        self._cost = scenario.cost
        self._now = 0.0
        items = [
            _Item(
                load,
                load.generated > 0 and load.uncomputed == 1,
                load.uncomputed,
                load.length,
                remaining(outlook.answers, load, scenario.quantile),
            )
            for load in outlook.loads
        ]
        self._running = [item for item in items if item.load.place is None]
        self._waiting = {item.load.id: item for item in items if item.load.place is not None}  # in order
        self._adapters = Counter(item.load.adapter for item in self._waiting.values())
        self._capacity = [
            available + sum(load.pages[pool] for load in outlook.loads)
            for pool, available in enumerate(outlook.available)
        ]

    def run(self) -> None:
        """Step until all sequences have a token."""
        while self._waiting or any(not item.begun for item in self._running):
            for item in self._admit():
                self.starts[item.load.id] = self._now
            for item in self._step():
                self.firsts[item.load.id] = self._now

    def _admit(self) -> list[_Item]:
        """Admit the first that may run as long as the step has tokens for it, and there are places and pages."""
        admitted = []
        while (item := self._first()) is not None and (not self._running or self._may_admit(item)):
            del self._waiting[item.load.id]
            self._adapters -= Counter((item.load.adapter,))
            admitted.append(item)
            self._running.append(item)
        return admitted

    def _first(self) -> _Item | None:
        """The first that waits and whose adapter has a place or finds one, by the rule of `scheduling/adapters.py`."""
        used = list(dict.fromkeys(item.load.adapter for item in self._running if item.load.adapter))
        if len(used) < self._outlook.max_adapters:
            return next(iter(self._waiting.values()), None)
        may_run = {0, *used}
        for item in self._waiting.values():
            if item.load.adapter in may_run:
                return item
            may_run.discard(used[0])  # it takes no sequence that comes after one without a place
            if not may_run & self._adapters.keys():
                return None
        return None

    def _may_admit(self, first: _Item) -> bool:
        rows = sum(item.uncomputed for item in self._running)
        places = len(self._running) < self._outlook.max_sequences
        return places and rows < self._outlook.max_step_tokens and self._fits(first)

    def _fits(self, head: _Item) -> bool:
        return all(
            capacity >= sum(self._pages(item, pool) for item in (*self._running, head)) + len(self._running)
            for pool, capacity in enumerate(self._capacity)
        )

    def _pages(self, item: _Item, pool: int) -> int:
        return min(item.load.most_pages[pool], -(-item.length // self._outlook.page_size))

    def _step(self) -> list[_Item]:
        """Compute steps until something changes; returns the sequences that decode from then on."""
        decoding = [item for item in self._running if item.begun]
        prompts = [item for item in self._running if not item.begun]
        depth = prompts[0].length - prompts[0].uncomputed / 2 if prompts else 0.0  # in the middle of the next chunks
        share = self._share(len(decoding), depth)
        n_steps = max(1, prompts[0].uncomputed // share) if prompts else min(item.left for item in decoding)
        n_steps = min((n_steps, *(item.left for item in decoding)))
        rows = _prefill(prompts, share * n_steps)
        for item in decoding:
            item.left -= n_steps
            item.length += n_steps
        seconds = n_steps * self._outlook.cost.seconds(len(decoding), rows / n_steps, depth * rows / n_steps)
        self._now += self._cost * seconds
        self._running = [item for item in self._running if item.left > 0]
        return [item for item in prompts if item.begun]

    def _share(self, n_decoding: int, depth: float) -> int:
        """Prompt tokens of a step beside so many sequences that decode, by the rule of the scheduler."""
        left = self._outlook.max_step_tokens - n_decoding
        n_all = min(len(self._running) + len(self._waiting), self._outlook.max_sequences)
        prompts = self._outlook.cost.prompt_tokens(self._outlook.target, n_decoding, n_all, depth)
        return max(1, left if prompts is None else min(left, prompts))


def _prefill(prompts: list[_Item], budget: int) -> int:
    """Compute prompts, the oldest first; returns the rows."""
    left = budget
    for item in prompts:
        taken = min(item.uncomputed, left)
        left -= taken
        item.uncomputed -= taken
        if not item.uncomputed:
            item.begun, item.uncomputed, item.left, item.length = True, 1, item.left - 1, item.length + 1
    return budget - left
