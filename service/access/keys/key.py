"""One API key at work: what it has used, and the refusal when that reaches a limit."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.access.keys.entry import Entry
from service.errors.errors import RateLimited

MINUTE = 60


class LastMinute:
    """What was used in the last 60 s, to a second: an amount is forgotten after 60 to 61 s."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ending: Counter[int] = Counter()  # amounts by the second in which they are forgotten, in this order

    @property
    def total(self) -> int:
        self._forget()
        return self._ending.total()

    def add(self, amount: int) -> None:
        self._forget()
        self._ending[math.ceil(self._clock()) + MINUTE] += amount

    def seconds_until_below(self, limit: int) -> int:
        """Seconds until the total is below `limit` if nothing is added; 0 if it is."""
        total, seconds = self.total, 0
        for ending, amount in self._ending.items():
            if total < limit:
                break
            total, seconds = total - amount, math.ceil(ending - self._clock())
        return seconds

    def _forget(self) -> None:
        now = self._clock()
        while self._ending and (first := next(iter(self._ending))) <= now:
            del self._ending[first]


class Key:
    """An API key and its use. `entry` changes when the key file is read again, the use stays."""

    def __init__(self, entry: Entry, clock: Callable[[], float]) -> None:
        self.entry = entry
        self._running = 0
        self._requests = LastMinute(clock)
        self._tokens = LastMinute(clock)

    @property
    def name(self) -> str:
        return self.entry.name

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request, which runs inside the context. Raises RateLimited."""
        self._check()
        self._requests.add(1)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def charge(self, n_tokens: int) -> None:
        """Count tokens of prompts and answers, once they are known."""
        self._tokens.add(n_tokens)

    def _check(self) -> None:
        most = self.entry.max_concurrent
        if most is not None and self._running >= most:
            raise RateLimited(self.name, "requests in flight", self._running, most, 1)
        for what, used, limit in (
            ("requests in the last minute", self._requests, self.entry.requests_per_minute),
            ("tokens in the last minute", self._tokens, self.entry.tokens_per_minute),
        ):
            if limit is not None and (seconds := used.seconds_until_below(limit)):
                raise RateLimited(self.name, what, used.total, limit, seconds)
