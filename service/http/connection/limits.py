"""The limits of connections: what one may send and in which time, and how many are open in all and by address."""

import resource
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

OTHER_DESCRIPTORS = 160
"""Descriptors that are not connections: files, the engine, the processes of grammars."""
LEAST_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds.

    `head_bytes` bounds the head of a request, and the bytes between two parts of a body: chunk extensions and trailers.
    `body_seconds` is the time between two parts of a body. All of it has `body_seconds`, and one second more for each
    `body_rate` bytes. A connection ends after `idle_seconds` without a request, and after
    `unread_seconds` in which a client does not read the 128 KiB that the server holds for it.
    After a response that ends the connection, the client has `linger_seconds` and `linger_bytes` for the rest of its
    request: a connection that is closed on unread bytes is reset, and the client would lose the response.
    """

    head_bytes: int = 32 * 2**10
    url_bytes: int = 8 * 2**10
    line_bytes: int = 8 * 2**10
    fields: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    body_rate: int = 16 * 2**10
    idle_seconds: float = 75.0
    unread_seconds: float = 60.0
    linger_seconds: float = 2.0
    linger_bytes: int = 16 * 2**20


LIMITS = Limits()


@dataclass(eq=False, frozen=True, slots=True)
class Place:
    """The place of one connection. `refusal` names the limit that it exceeds: its request is refused then.

    `leave` ends the connection, to make a place for another one.
    """

    address: str | None
    refusal: str | None
    leave: Callable[[], None]


class Places:
    """The counter of connections. `limit` holds for all of them, `per_address` for those of one client's address.

    At a limit, `enter` ends the connection that has waited longest for a whole head: clients that send half a request,
    or none, keep nobody out. If none waits, the new one gets a place beyond the limit, and its request an error.
    """

    def __init__(self, limit: int, per_address: int) -> None:
        self.limit = limit
        self.per_address = per_address
        self._open: set[Place] = set()
        self._counts: Counter[str | None] = Counter()  # by address
        self._waiting: dict[Place, None] = {}  # for a head, the longest first

    @property
    def n_open(self) -> int:
        return len(self._open)

    def enter(self, address: str | None, leave: Callable[[], None]) -> Place:
        """Give a new connection, which waits for a head, its place. A Unix socket has no address."""
        place = Place(address, self._make_place(address), leave)
        self._open.add(place)
        self._counts[address] += 1
        self.wait(place)
        return place

    def wait(self, place: Place) -> None:
        """Note that a connection has nothing to do but to wait for a head."""
        self._waiting[place] = None

    def work(self, place: Place) -> None:
        """Note that the head has arrived."""
        self._waiting.pop(place, None)

    def exit(self, place: Place) -> None:
        """Free the place of a connection that is gone, or will be at once."""
        if place not in self._open:
            return
        self.work(place)
        self._open.remove(place)
        self._counts[place.address] -= 1
        if not self._counts[place.address]:
            del self._counts[place.address]

    def _make_place(self, address: str | None) -> str | None:
        """End a waiting connection if there is no place. Returns the limit that is still exceeded."""
        if address is not None and self._counts[address] >= self.per_address:
            self._end_first(place for place in self._waiting if place.address == address)
            if self._counts[address] >= self.per_address:
                return f"your address has {self.per_address} connections, which is the limit"
        if self.n_open >= self.limit:
            self._end_first(self._waiting)
            if self.n_open >= self.limit:
                return f"the server has {self.limit} connections, which is its limit"
        return None

    def _end_first(self, places: Iterable[Place]) -> None:
        """End the first of these connections, if there is one."""
        if (first := next(iter(places), None)) is not None:
            self.exit(first)
            first.leave()


def raise_descriptor_limit(max_connections: int) -> int:
    """Let this process open as many descriptors as it may; returns how many connections it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(LEAST_CONNECTIONS, hard - OTHER_DESCRIPTORS))
