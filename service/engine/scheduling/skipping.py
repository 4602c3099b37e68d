"""A scheduler for simulations: it does not touch a sequence in steps that change nothing but its length.

A sequence that decodes on a page that it holds needs no decision until the page is full, a page leaves its window, or
its answer ends. It is passed over until then and brought up to date at once. While there are pages for all, the next
page is taken at once too. All else is the scheduler's own code, so that plans, pages and preemptions are the same as
step by step.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence as Items
from itertools import count
from typing import Any, NamedTuple

from model.batch import PoolSpec, RunnerInfo, StepOutput
from service.engine.messages import Update
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.sequence import Sequence
from service.engine.scheduling.step import Step
from service.engine.scheduling.trail import Trail


class _Quiet(NamedTuple):
    """A sequence that is passed over: in steps `since` up to `until - 1`. `growth` is what each adds to its keys."""

    since: int
    until: int
    place: int
    growth: int


def visible(pools: Items[PoolSpec], position: int) -> int:
    """Number of keys that the token at a position attends to, the sum over the pools."""
    return sum(position + 1 if pool.window is None else min(position + 1, pool.window) for pool in pools)


class _NoTrail(Trail):
    """Remembers no prompts: why the cache missed one changes nothing that is scheduled."""

    def note(self, sequence: Sequence, blocks: range) -> None:
        pass

    def miss(self, sequence: Sequence, n_reused: int) -> None:
        pass


class SkippingScheduler(Scheduler):
    """A scheduler whose plans leave out the sequences that only decode.

    The next step also computes one token for each of `n_quiet` sequences, with `quiet_keys` visible keys together.
    `commit` follows each `plan`, also an empty one. `answer` gives the token of which the answer of a sequence
    consists. `preempted` has the ids of the sequences that the latest `plan` preempted. There may be no images,
    adapters or draft tokens.
    """

    def __init__(self, info: RunnerInfo, **options: Any) -> None:
        super().__init__(info, **options)
        self._specs = info.pools
        self._trail = _NoTrail(self.pools)
        self.quiet_keys = 0
        self.preempted: list[int] = []
        self._n = 0  # steps that were committed
        self._places = count()
        self._awake: dict[Sequence, int] = {}  # the running sequences that are not passed over, with their places
        self._quiet: dict[Sequence, _Quiet] = {}
        self._ends: dict[int, list[Sequence]] = defaultdict(list)  # when to look at quiet sequences again
        self._growth = 0  # what a step adds to `quiet_keys`
        self._tenants: Counter[tuple[int, str]] = Counter()  # quiet sequences by priority and tenant
        self._planning = Step(0)

    @staticmethod
    def answer(sequence_id: int) -> int:
        return 2 * sequence_id + 1

    @property
    def n_quiet(self) -> int:
        return len(self._quiet)

    @property
    def n_waiting(self) -> int:
        return len(self._queue)

    def commit(self, output: StepOutput) -> list[Update]:
        """Take the result of the planned step: one token for each quiet sequence too."""
        self._n += 1
        self.quiet_keys += self._growth
        for (priority, tenant), number in self._tenants.items():
            self._queue.charge_tenant(priority, tenant, generated=number)
        if not self._planned:
            return []
        parts = self._planned[0].parts
        updates = super().commit(output)
        for sequence in parts:
            if sequence in self._awake:
                self._rest(sequence)
        return updates

    def _in_order(self, step: Step) -> list[Sequence]:
        self.preempted.clear()
        for sequence in self._ends.pop(self._n, ()):
            if sequence in self._quiet and self._quiet[sequence].until == self._n:
                self._wake(sequence)
        if all(pool.available >= len(self._running) for pool in self.pools):  # then nobody is preempted for a page
            for sequence in tuple(self._awake):
                self._turn_page(sequence)
        step.budget -= len(self._quiet)
        self._planning = step
        return sorted(self._awake, key=lambda item: (item.uncomputed > 1, self._awake[item]))

    def _unfinished(self) -> list[Sequence]:
        return [item for item in self._awake if item.uncomputed > 1]

    def _admit(self, sequence: Sequence, step: Step) -> bool:
        admitted = super()._admit(sequence, step)
        if admitted:
            self._awake[sequence] = next(self._places)
        return admitted

    def _preempt(self, sequence: Sequence) -> None:
        if sequence in self._quiet:
            self._wake(sequence)
            self._planning.budget += 1
        del self._awake[sequence]
        self.preempted.append(sequence.id)
        super()._preempt(sequence)

    def _forget(self, sequence: Sequence) -> None:
        if sequence in self._quiet:
            self._wake(sequence)
        self._awake.pop(sequence, None)
        super()._forget(sequence)

    def _turn_page(self, sequence: Sequence) -> None:
        """Take the page that a decoding sequence needs next, and pass over it if that was all."""
        if sequence.uncomputed == 1 and sequence.n_output:
            for table in sequence.tables:
                table.grow(sequence.length)
            self._rest(sequence)

    def _rest(self, sequence: Sequence) -> None:
        """Pass over a sequence that decodes as long as its steps change nothing but its length."""
        steps = self._quiet_steps(sequence)
        if steps < 1:
            return
        position = sequence.computed
        growth = sum(pool.window is None or position + 1 < pool.window for pool in self.pools)
        self._quiet[sequence] = _Quiet(self._n, self._n + steps, self._awake.pop(sequence), growth)
        self._ends[self._n + steps].append(sequence)
        self._tenants[sequence.priority, sequence.tenant] += 1
        self.quiet_keys += visible(self._specs, position)
        self._growth += growth

    def _wake(self, sequence: Sequence) -> None:
        """Bring a quiet sequence up to date."""
        since, _, self._awake[sequence], growth = self._quiet.pop(sequence)
        if steps := self._n - since:
            sequence.append([self.answer(sequence.id)] * steps)
            sequence.advance(sequence.computed, sequence.computed + steps)
        self._tenants[sequence.priority, sequence.tenant] -= 1
        self.quiet_keys -= visible(self._specs, sequence.computed)
        self._growth -= growth

    def _quiet_steps(self, sequence: Sequence) -> int:
        """Number of the sequence's next steps before one that takes or releases a page, or ends the answer.

        A page that is full gets its name when the next one is taken: no sequence looks for it between.
        """
        position = sequence.computed
        if sequence.uncomputed > 1 or not sequence.n_output:
            return 0
        least = sequence.params.max_tokens - sequence.n_output - 1
        for table in sequence.tables:
            size, window = table.pool.page_size, table.pool.window
            least = min(least, table.end_block * size - position)
            if window is not None:
                least = min(least, (table.first_block + 1) * size + window - 2 - position)
                if position + 1 < window:  # from there on the number of visible keys is the same
                    least = min(least, window - position - 1)
        return least
