"""The places for connections: a limit in all and for each address, and some that are kept for probes."""

import resource
from collections import Counter
from collections.abc import Callable

RESERVED = 32
"""Connections beyond the limits, for `/live`, `/ready` and `/health` alone."""
OTHER_DESCRIPTORS = 128
"""Descriptors that are not connections: files, the engine, the processes of grammars."""
LEAST_CONNECTIONS = 16


class Place:
    """The place of one connection. `refusal` says which limit is exceeded: only probes are served then."""

    __slots__ = ("address", "leave", "refusal")

    def __init__(self, address: str, refusal: str | None, leave: Callable[[], None]) -> None:
        self.address = address
        self.refusal = refusal
        self.leave = leave
        """Ends the connection, to make a place for another probe."""


class Places:
    """Counts connections. `limit` is that of all of them, `per_address` that of each client's address."""

    def __init__(self, limit: int, per_address: int) -> None:
        self.limit = limit
        self.per_address = per_address
        self.n_open = 0
        self._addresses: Counter[str] = Counter()
        self._reserved: dict[Place, None] = {}  # oldest first

    def enter(self, address: str, leave: Callable[[], None]) -> Place:
        """The place of a new connection. `leave` ends it; a reserved place goes to the newest connection."""
        place = Place(address, self._refusal(address), leave)
        if place.refusal is None:
            self.n_open += 1
            self._addresses[address] += 1
        else:
            self._reserved[place] = None
            if len(self._reserved) > RESERVED:
                oldest = next(iter(self._reserved))
                del self._reserved[oldest]
                oldest.leave()
        return place

    def exit(self, place: Place) -> None:
        """The connection is gone."""
        if place.refusal is not None:
            self._reserved.pop(place, None)
            return
        self.n_open -= 1
        self._addresses[place.address] -= 1
        if not self._addresses[place.address]:
            del self._addresses[place.address]

    def _refusal(self, address: str) -> str | None:
        if self.n_open >= self.limit:
            return f"the server has {self.limit} connections, which is its limit"
        if self._addresses[address] >= self.per_address:
            return f"your address has {self.per_address} connections, which is the limit"
        return None


def raise_descriptor_limit(max_connections: int) -> int:
    """Let this process open as many descriptors as it may; returns how many connections it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(LEAST_CONNECTIONS, hard - RESERVED - OTHER_DESCRIPTORS))
