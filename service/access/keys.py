"""The API keys of a server: the use of each, its limits, and counts of tenants that share one limit."""

import hmac
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path

from service.access.entry import KeyEntry, read_entries
from service.errors.errors import RateLimited

MINUTE = 60


class LastMinute:
    """The use in the last 60 s, to a second: an amount is forgotten after 60 to 61 s."""

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
        """Return the seconds until the total is below `limit` if nothing is added; 0 if it is."""
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

    def __init__(self, entry: KeyEntry, clock: Callable[[], float]) -> None:
        self.entry = entry
        self._running = 0
        self._requests = LastMinute(clock)
        self._tokens = LastMinute(clock)

    @property
    def name(self) -> str:
        return self.entry.name

    @contextmanager
    def request(self, *, reads: bool = False) -> Iterator[None]:
        """Count a request, which runs inside the context. Raises RateLimited.

        One that `reads` what another computes is not in flight, and may come beside any number.
        """
        if not reads:
            self._check_running()
        self._check_minute()
        self._requests.add(1)
        with nullcontext() if reads else self.running():
            yield

    def computes(self) -> AbstractContextManager[None]:
        """Count a request that was to read, and computes, as one in flight. Raises RateLimited."""
        self._check_running()
        return self.running()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count as one of the requests in flight inside the context, such as work that has outlived its request."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def charge(self, n_tokens: int) -> None:
        """Count tokens of prompts and answers, once they are known."""
        self._tokens.add(n_tokens)

    def _check_running(self) -> None:
        if (most := self.entry.max_concurrent) is not None and self._running >= most:
            raise RateLimited(self.name, "requests in flight", self._running, most, 1, "max_concurrent")

    def _check_minute(self) -> None:
        for what, used in (("requests", self._requests), ("tokens", self._tokens)):
            name = f"{what}_per_minute"
            limit: int | None = getattr(self.entry, name)
            if limit is not None and (seconds := used.seconds_until_below(limit)):
                raise RateLimited(self.name, f"{what} in the last minute", used.total, limit, seconds, name)


class Keys:
    """The keys that clients may send: `keys`, and those in the file at `path`. It is false if there are none.

    The constructor raises OptionError for a bad file.
    """

    def __init__(self, keys: Iterable[str], path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._given = tuple(keys)
        self._path = path
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self.reload()

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def entries(self) -> dict[str, KeyEntry]:
        """Return the entry of each key, by its name."""
        return {name: key.entry for name, key in self._keys.items()}

    def reload(self) -> None:
        """Read the file again. A key with the same name goes on with the use that it had.

        Raises OptionError for a bad file: the keys are then as before.
        """
        found = {}
        for entry in read_entries(self._given, self._path):
            key = found[entry.name] = self._keys.get(entry.name) or Key(entry, self._clock)
            key.entry = entry
        self._keys = found

    def owner(self, identity: str) -> Key | None:
        """Return the key with this identity, if the server still has it."""
        return next((key for key in self._keys.values() if key.entry.identity == identity), None)

    def find(self, candidates: Iterable[bytes]) -> Key | None:
        """Return the key that is one of `candidates`, if there is one.

        It compares hashes, all of them and each in constant time: the duration says nothing about the keys.
        """
        digests = [sha256(candidate).digest() for candidate in candidates]
        pairs = [(key, digest) for key in self._keys.values() if not key.entry.end for digest in digests]
        matches = [key for key, digest in pairs if hmac.compare_digest(key.entry.digest, digest)]
        return matches[-1] if matches else None


class Share:
    """A count by tenant: the name of an API key; without keys "", or the address of a client."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()  # only tenants that have something

    @property
    def total(self) -> int:
        return self._used.total()

    def add(self, tenant: str, n: int) -> None:
        """Count `n` more; a negative number counts what has left."""
        self._used[tenant] += n
        if not self._used[tenant]:
            del self._used[tenant]

    def is_full(self, tenant: str, limit: int, n: int = 1) -> bool:
        """Return whether with `n` more the tenants together would exceed the limit, and this one its equal part of it.

        T tenants may have up to 1 + 1/2 + ... + 1/T times the limit, if each fills what the others left.
        """
        n_tenants = len(self._used.keys() | {tenant})
        return self.total + n > limit and (self._used[tenant] + n - 1) * n_tenants >= limit
