"""The metric of fields that were refused or had no effect. Its label is a path, which clients choose: it is bounded."""

import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter

MAX_UNKNOWN, MAX_UNKNOWN_OF_SENDER = 256, 64
"""As many paths that no body declares have series, and as many of them by one sender: others do not fill them all."""
MAX_AGE_SECONDS = 3600.0
"""The series of such a path end so long after its latest request, when another one needs its place."""
OTHER_FIELD = "other"
INDEX = re.compile(r"\[\d+\]")

Outcome = Literal["refused", "ignored"]


@dataclass(slots=True)
class Unknown:
    """A path that no body declares. `sender` sent it first; `series` are the routes and outcomes that it has."""

    sender: str
    seen: float
    series: set[tuple[str, Outcome]] = field(default_factory=set)


class FieldMetrics:
    """Counts requests by field. `declared` are the paths of fields in bodies: each always has a series of its own."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self.declared: frozenset[str] = frozenset()
        self._clock = clock
        self._unknown: dict[str, Unknown] = {}
        """By path; the one seen latest is the last."""
        self._requests = Counter(
            "noria_request_fields",
            "Requests with a field that a 400 named (refused), or that passed without effect (ignored).",
            ["route", "field", "outcome"],
            registry=registry,
        )

    def observe(self, sender: str, route: str, fields: Iterable[str], outcome: Outcome) -> None:
        """Count one request. `fields` are printable paths such as "messages[0].mood"; the series has no index."""
        for path in {INDEX.sub("", name) for name in fields}:
            own = path in self.declared or (path != OTHER_FIELD and self._has_place(sender, path))
            label = path if own else OTHER_FIELD
            self._requests.labels(route, label, outcome).inc()
            if label in self._unknown:
                self._unknown[label].series.add((route, outcome))

    def _has_place(self, sender: str, path: str) -> bool:
        """Whether an unknown path has series of its own, from now on if there is a place."""
        now = self._clock()
        known = self._unknown.pop(path, None)
        if known is None:
            self._forget(now - MAX_AGE_SECONDS)
            senders = Tally(item.sender for item in self._unknown.values())
            if len(self._unknown) >= MAX_UNKNOWN or senders[sender] >= MAX_UNKNOWN_OF_SENDER:
                return False
            known = Unknown(sender, now)
        known.seen = now
        self._unknown[path] = known
        return True

    def _forget(self, latest: float) -> None:
        """End the series of the paths that were not seen after `latest`."""
        for path in [path for path, item in self._unknown.items() if item.seen < latest]:
            for route, outcome in self._unknown.pop(path).series:
                self._requests.remove(route, path, outcome)
