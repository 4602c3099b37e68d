"""The progress of a download in bytes, reported every ten seconds."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from model.checkpoint.files import Progress
from model.errors import duration, size

SECONDS = 10.0
"""Between two texts. A log that has a line for each new stage of loading then has one so often."""
STAGE = "downloading"


class Meter:
    """Counts the bytes of a download and reports them. `stage` is a text with bytes, rate and time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._start = time.monotonic()
        self._stage = STAGE
        self._first: float | None = None
        self._done, self._total = 0.0, 0.0

    def count(self, done: float, total: float) -> None:
        """Note that so many bytes are there, of so many. What was there at the first call does not count as rate.

        huggingface_hub counts the same bytes when they arrive and when they are written: the greater number counts.
        """
        if self._first is None:
            self._first, self._start = done, time.monotonic()
        self._done, self._total = max(done, self._done), max(total, self._total)
        self.report()

    def report(self) -> None:
        self._progress(self._stage, min(self._done / self._total, 1.0) if self._total else 0.0)

    def tell(self) -> None:
        """Put the state into words, and report it."""
        if not self._total:
            return
        rate = (self._done - (self._first or 0.0)) / (time.monotonic() - self._start)
        left = f", {duration((self._total - self._done) / rate)} left" if rate else ", no data arrives"
        share = f"{size(self._done)} of {size(self._total)} ({self._done / self._total:.0%})"
        self._stage = f"{STAGE}: {share}, {size(rate)}/s{left}"
        self.report()


@contextmanager
def metered(progress: Progress, seconds: float = SECONDS) -> Iterator[Meter]:
    """Run a meter that reports its state every so many seconds, until the block has ended well."""
    meter, ended = Meter(progress), threading.Event()

    def tell() -> None:
        while not ended.wait(seconds):
            meter.tell()

    thread = threading.Thread(target=tell, name="noria-download", daemon=True)
    thread.start()
    try:
        yield meter
    finally:
        ended.set()
        thread.join()
    progress(STAGE, 1.0)
