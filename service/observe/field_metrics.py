"""The metric of fields that were refused or had no effect. Its label is a path, which clients choose: it is bounded."""

import re
from collections import Counter as Tally
from collections.abc import Iterable
from typing import Literal
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter

MAX_UNKNOWN, MAX_UNKNOWN_OF_SENDER = 256, 64
"""As many paths that no body declares have series, and as many of them by one sender: others do not fill them all."""
MAX_PATH_CHARS = 64
OTHER_FIELD = "other"
INDEX = re.compile(r"\[\d+\]")


class FieldMetrics:
    """Counts requests by field. `declared` are the paths of fields in bodies: each always has a series of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.declared: frozenset[str] = frozenset()
        self._unknown: dict[str, str] = {}
        """Path -> the sender of its first request."""
        self._requests = Counter(
            "noria_request_fields",
            "Requests with a field that a 400 named (refused), or that passed without effect (ignored).",
            ["route", "field", "outcome"],
            registry=registry,
        )

    def observe(self, sender: str, route: str, fields: Iterable[str], outcome: Literal["refused", "ignored"]) -> None:
        """Count one request. `fields` are paths such as "messages[0].mood"; the series has no index."""
        for label in {self._label(sender, field) for field in fields}:
            self._requests.labels(route, label, outcome).inc()

    def _label(self, sender: str, field: str) -> str:
        path = quote(INDEX.sub("", field))[:MAX_PATH_CHARS]
        if path in self.declared or path in self._unknown:
            return path
        if len(self._unknown) >= MAX_UNKNOWN or Tally(self._unknown.values())[sender] >= MAX_UNKNOWN_OF_SENDER:
            return OTHER_FIELD
        self._unknown[path] = sender
        return path
