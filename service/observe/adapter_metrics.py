"""Counts by LoRA adapter. The label is the adapter's name. The series of an adapter end when it is unloaded."""

import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from service.engine.messages import AdapterStats

Values = Mapping[tuple[str, ...], float]
"""Values by the labels that follow the model's name."""


class AdapterCounts:
    """The use of adapters by requests to one model.

    `names` gives the adapters by their numbers in the engine, `uses` those that it uses; `max_running` may run at a
    time.
    """

    def __init__(self, outcomes: Sequence[str], uses: Callable[[], Sequence[AdapterStats]]) -> None:
        self._outcomes = outcomes
        self._uses = uses
        self.names: Callable[[], Mapping[int, str]] = dict
        self.max_running = 0
        self._requests: Tally[tuple[str, ...]] = Tally()
        self._generated: Tally[tuple[str, ...]] = Tally()

    def observe(self, name: str, outcome: str, generated_tokens: int) -> None:
        self._requests[name, outcome] += 1
        self._generated[name,] += generated_tokens

    def requests(self) -> Values:
        """Begin the series of new adapters at 0, and end those of adapters that are unloaded."""
        self._requests = Tally({of: self._requests[of] for of in product(self.names().values(), self._outcomes)})
        return self._requests

    def generated(self) -> Values:
        """Begin and end series as `requests` does."""
        self._generated = Tally({(name,): self._generated[name,] for name in self.names().values()})
        return self._generated

    def used(self, state: str) -> Values:
        """Count the sequences that are `running` or `waiting`."""
        used = {item.adapter: getattr(item, state) for item in self._uses()}
        return {(name,): used.get(number, 0) for number, name in self.names().items()}

    def in_use(self) -> Values:
        """Give the time; the labels are how many adapters may run, those that run and those that wait."""
        names = self.names()
        there = [item for item in self._uses() if item.adapter in names]
        runs = ",".join(names[item.adapter] for item in there if item.running)
        waits = ",".join(names[item.adapter] for item in there if item.waiting)
        return {(str(self.max_running), runs, waits): time.time()} if self.max_running else {}
