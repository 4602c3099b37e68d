"""The view of the scheduler for pictures. It only reads."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from service.engine.picture import (
    MAX_PAGES,
    MAX_QUEUED,
    MAX_RUNNING,
    Picture,
    Reason,
    SequencePages,
    SequenceShape,
    SequenceState,
    StepRows,
)
from service.engine.scheduling.pages import Table
from service.engine.scheduling.sequence import Sequence

EVERY = range(2**63)
"""All ids."""


@dataclass(frozen=True, slots=True)
class View:
    """The scheduler between two steps: what runs, oldest first, and what waits, in the order of admission.

    `blocked` says why the latest plan admitted no more: a `Reason`, or None if nothing waited.
    Those `reading` wait for pages of the disk. `preparing` are sequences whose grammars are compiled: their ids and
    prompts' lengths.
    """

    running: tuple[Sequence, ...]
    waiting: tuple[Sequence, ...]
    blocked: Reason | None
    reading: frozenset[Sequence]
    preparing: Mapping[int, int]

    def whole(self, steps: tuple[StepRows, ...]) -> Picture:
        """Return the picture of these steps and of the first sequences."""
        queued = chain((item for _, item in self._queue(True)), self._unprepared())
        first = (*islice(self._running(True), MAX_RUNNING), *islice(queued, MAX_QUEUED))
        n_sequences = len(self.running) + len(self.waiting) + len(self.preparing)
        return Picture(steps, first, n_sequences - len(first))

    def of(self, ids: Iterable[int]) -> Picture:
        """Return the sequences with these ids, and their places in the queue."""
        chosen = frozenset(ids)
        queued = [*self._queue(False, chosen)]
        unprepared = (item for item in self._unprepared() if item.id in chosen)
        return Picture(
            sequences=(*self._running(False, chosen), *(item for _, item in queued), *unprepared),
            places=tuple((item.id, place) for place, item in queued),
        )

    def _running(self, pages: bool, ids: Container[int] = EVERY) -> Iterator[SequenceShape]:
        for item in self.running:
            if item.id in ids:
                reason: Reason | None = "disk" if item in self.reading else None
                prefills = item.uncomputed > 1 or item.length == item.n_prompt
                yield _shape(item, "prompt" if prefills else "decode", reason, pages)

    def _queue(self, pages: bool, ids: Container[int] = EVERY) -> Iterator[tuple[int, SequenceShape]]:
        """Yield those that wait, each with its place."""
        priority, newest, newest_prior = 0, -1, -1  # of those before: the newest of its priority, and of others
        for place, item in enumerate(self.waiting, 1):
            if item.priority != priority:
                priority, newest, newest_prior = item.priority, -1, max(newest, newest_prior)
            reason = self.blocked
            if item in self.reading:
                reason = "disk"
            elif reason is not None and max(newest, newest_prior) > item.number:
                reason = "priority" if newest_prior > item.number else "fairness"
            if item not in self.reading:
                newest = max(newest, item.number)
            if item.id in ids:
                yield place, _shape(item, "waiting" if item.admitted is None else "preempted", reason, pages)

    def _unprepared(self) -> Iterator[SequenceShape]:
        for sequence_id, n_prompt in self.preparing.items():
            yield SequenceShape(sequence_id, "waiting", n_prompt, 0, 0, 0, "grammar", ())


def _shape(item: Sequence, state: SequenceState, reason: Reason | None, pages: bool) -> SequenceShape:
    generated = len(item.tokens) - item.n_prompt
    cached = 0 if item.admitted is None else item.admitted.cached
    tables = tuple(map(_table, item.tables)) if pages else ()
    return SequenceShape(item.id, state, item.n_prompt, item.computed, generated, cached, reason, tables)


def _table(table: Table) -> SequencePages:
    ids = tuple(table.pages[-MAX_PAGES:])
    shared = tuple(index for index, page in enumerate(ids) if table.pool.is_shared(page))
    return SequencePages(table.first_block, len(table.pages), ids, shared)
