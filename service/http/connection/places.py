"""The places for connections: a limit in all and for each address, and some that are kept for probes."""

import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

RESERVED = 32
"""Connections beyond the limits, for `/live`, `/ready` and `/health` alone."""
OTHER_DESCRIPTORS = 128
"""Descriptors that are not connections: files, the engine, the processes of grammars."""
LEAST_CONNECTIONS = 16


class Place:
    """The place of one connection. `refusal` says which limit is exceeded: only probes are served then."""

    __slots__ = ("address", "leave", "refusal")

    def __init__(self, address: str | None, refusal: str | None, leave: Callable[[], None]) -> None:
        self.address = address
        self.refusal = refusal
        self.leave = leave
        """Ends the connection, to make a place for another one."""


class Places:
    """Counts connections. `limit` is that of all of them, `per_address` that of each client's address.

    At a limit the connection ends that has waited longest for a whole head. So clients that send half a request, or
    none, keep nobody out. If no connection waits, the new one gets a reserved place.
    """

    def __init__(self, limit: int, per_address: int) -> None:
        self.limit = limit
        self.per_address = per_address
        self.n_open = 0
        self._counts: Counter[str | None] = Counter()
        self._waiting: dict[Place, None] = {}  # for a head, the longest first
        self._waiting_at: defaultdict[str | None, dict[Place, None]] = defaultdict(dict)
        self._reserved: dict[Place, None] = {}  # oldest first

    def enter(self, address: str | None, leave: Callable[[], None]) -> Place:
        """The place of a new connection, which waits for a head. `leave` ends it. A Unix socket has no address."""
        place = Place(address, self._make_place(address), leave)
        if place.refusal is None:
            self.n_open += 1
            self._counts[address] += 1
            self.wait(place)
        else:
            self._reserved[place] = None
            if len(self._reserved) > RESERVED:
                self._end_first(self._reserved)
        return place

    def wait(self, place: Place) -> None:
        """The connection has nothing to do but to wait for a head."""
        if place.refusal is None:
            self._waiting[place] = None
            self._waiting_at[place.address][place] = None

    def work(self, place: Place) -> None:
        """The head is there."""
        self._waiting.pop(place, None)
        if (waiting := self._waiting_at.get(place.address)) is not None:
            waiting.pop(place, None)
            if not waiting:
                del self._waiting_at[place.address]

    def exit(self, place: Place) -> None:
        """The connection is gone."""
        if place.refusal is not None:
            self._reserved.pop(place, None)
            return
        self.work(place)
        self.n_open -= 1
        self._counts[place.address] -= 1
        if not self._counts[place.address]:
            del self._counts[place.address]

    def _make_place(self, address: str | None) -> str | None:
        """End a connection that waits if there is no place. Returns the limit that is exceeded if none waits."""
        full = address is not None and self._counts[address] >= self.per_address
        if full and not self._end_first(self._waiting_at.get(address, ())):
            return f"your address has {self.per_address} connections, which is the limit"
        if self.n_open >= self.limit and not self._end_first(self._waiting):
            return f"the server has {self.limit} connections, which is its limit"
        return None

    def _end_first(self, places: Iterable[Place]) -> bool:
        """End the first of these connections, if there is one."""
        first = next(iter(places), None)
        if first is None:
            return False
        self.work(first)
        self._reserved.pop(first, None)
        first.leave()
        return True


def raise_descriptor_limit(max_connections: int) -> int:
    """Let this process open as many descriptors as it may; returns how many connections it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(LEAST_CONNECTIONS, hard - RESERVED - OTHER_DESCRIPTORS))
