"""Why a group of ranks ends: of the troubles that follow from each other, the one that came first."""

import logging
import threading
from collections.abc import Callable
from enum import IntEnum

log = logging.getLogger(__name__)

GRACE_SECONDS = 0.3
"""A rank that dies makes others raise, sometimes before its own end is seen."""


class TroubleKind(IntEnum):
    """The place where a trouble shows; the lower one is the likelier cause."""

    GONE = 0
    """A rank has ended, is stopped, or is silent."""
    RAISED = 1
    """Another rank raised an error. It tells of it before its connections close."""
    OWN = 2
    """Rank 0 raised an error, perhaps because of another rank."""


class Troubles:
    """Collects troubles for a moment, then calls `end` once, from another thread, with the likeliest reason."""

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._found: list[tuple[TroubleKind, int, str]] = []
        self.reason: str | None = None

    def note(self, kind: TroubleKind, reason: str) -> None:
        with self._lock:
            self._found.append((kind, len(self._found), reason))
            if len(self._found) == 1:
                timer = threading.Timer(GRACE_SECONDS, self._decide)
                timer.daemon = True
                timer.start()

    def _decide(self) -> None:
        with self._lock:
            self.reason = min(self._found)[2]
        self._end(self.reason)
