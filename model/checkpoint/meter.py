"""How far a download is, in bytes, for those who wait: every ten seconds in words."""

import time

from model.checkpoint.files import Progress
from model.errors import duration, size

SECONDS = 10.0
"""Between two texts. A log that has a line for each new stage of loading then has one so often."""
STAGE = "downloading"


class Meter:
    """Counts the bytes of a download and reports them, as a text with bytes, rate and time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._start = self._told = time.monotonic()
        self._stage = STAGE
        self._first: float | None = None
        self._done, self._total = 0.0, 0.0

    def count(self, done: float, total: float) -> None:
        """Note that so many bytes are there, of so many. What was there at the first call does not count as rate.

        huggingface_hub counts the same bytes when they arrive and when they are written: the greater number counts.
        """
        now = time.monotonic()
        if self._first is None:
            self._first, self._start = done, now
        self._done, self._total = max(done, self._done), max(total, self._total)
        if now - self._told >= SECONDS:
            self._stage, self._told = self._text(now, self._done - self._first), now
        self._progress(self._stage, min(self._done / self._total, 1.0) if self._total else 0.0)

    def _text(self, now: float, arrived: float) -> str:
        rate = arrived / (now - self._start)
        left = f", {duration((self._total - self._done) / rate)} left" if rate else ""
        share = f"{size(self._done)} of {size(self._total)} ({self._done / self._total:.0%})"
        return f"{STAGE}: {share}, {size(rate)}/s{left}"
