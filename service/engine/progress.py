"""The progress of the engine: how long its oldest sequence has made none, and what the latest steps did."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from model.batch import StepBatch
from service.engine.picture import MAX_STEPS, StepRows

WATCHED_SECONDS = 3.0
"""A step is recorded if it begins at most so long after a look. Who watches looks at least once a second."""


class StallClock:
    """A clock that the beat advances: time in which the whole process was stopped does not count.

    The loop's thread calls `note`, the beat's thread `tick`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._sequences: dict[int, float] = {}
        self._oldest: float | None = None
        self._work: dict[str, tuple[int, float]] = {}

    def note(self, due: Iterable[int], done: Iterable[int] = ()) -> None:
        """Take the ids of the sequences that should make progress, and of those that have just made some."""
        now, before, done = self._now, self._sequences, set(done)
        self._sequences = {key: now if key in done else before.get(key, now) for key in due}
        self._oldest = min(self._sequences.values(), default=None)

    def tick(self, seconds: float, **work: int | None) -> float:
        """Let time pass; returns the seconds that the oldest sequence, or other work, has made no progress.

        Each other `work` is a number that changes when it makes progress; None while there is none.
        """
        self._now += seconds
        before, now = self._work, self._now
        self._work = {
            name: before[name] if name in before and before[name][0] == count else (count, now)
            for name, count in work.items()
            if count is not None
        }
        oldest = now if self._oldest is None else self._oldest
        return now - min(oldest, *(since for _, since in self._work.values()), now)


class StepRecorder:
    """The latest steps for the pictures of an engine. It records nothing while nobody looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._n = 0
        self._watched_until = -inf
        self._latest: deque[StepRows] = deque(maxlen=MAX_STEPS)

    def note(self, batch: StepBatch, rows: int, seconds: float) -> None:
        self._n += 1
        if self._clock() - seconds > self._watched_until:
            self._latest.clear()
            return
        draft = sum(item.n_draft for item in batch.slices)
        decode = sum(
            item.start >= item.n_prompt and item.stop - item.n_draft - item.start == 1 for item in batch.slices
        )
        prompt = rows - draft - decode
        self._latest.append(StepRows(self._n, decode, prompt, draft, len(batch.slices), round(seconds, 6)))

    def take(self) -> tuple[StepRows, ...]:
        """Return the steps since the last call."""
        taken = (*self._latest,)
        self._latest.clear()
        self._watched_until = self._clock() + WATCHED_SECONDS
        return taken
