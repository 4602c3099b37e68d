"""How long the oldest sequence of the engine has made no progress."""

from collections.abc import Iterable


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
