"""The queue of waiting sequences: first by priority, then in fair shares for each tenant, then by arrival.

The shares follow the Virtual Token Counter of "Fairness in Serving Large Language Models" (arXiv 2401.00588). Each
tenant has a counter of the tokens that it was served. The tenant with the lowest counter is next. A tenant that comes
back is lifted to the lowest counter of those that wait, so that it gains nothing by having been idle. While two
tenants wait, the difference of their service stays within a bound that no flood can change.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from operator import attrgetter

from service.engine.scheduling.sequence import Sequence

PROMPT_WEIGHT = 1
GENERATED_WEIGHT = 2
"""The paper's weights: the cost of a prompt token that is computed, and of a generated one."""
NUMBER = attrgetter("number")


class WaitingQueue:
    """All sequences that wait. Each priority has its own shares: one that is not served there earns no credit here.

    `by_adapter` counts the sequences by the number of their LoRA adapter.
    """

    def __init__(self) -> None:
        self.by_adapter: Counter[int] = Counter()
        self._levels: dict[int, FairQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def __bool__(self) -> bool:
        return any(self._levels.values())

    def ordered(self) -> Iterator[Sequence]:
        """The waiting sequences in the order of their admission, if no more come and no tokens are generated."""
        for priority in sorted(self._levels):
            yield from self._levels[priority].ordered()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, a preempted one at its old place among those of its tenant."""
        self._levels.setdefault(sequence.priority, FairQueue()).add(sequence)
        self.by_adapter[sequence.adapter] += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out, because it is admitted or aborted."""
        self._levels[sequence.priority].remove(sequence)
        self.by_adapter[sequence.adapter] -= 1
        if not self.by_adapter[sequence.adapter]:
            del self.by_adapter[sequence.adapter]

    def charge(self, sequence: Sequence, *, prompt: int) -> None:
        """Count tokens that were computed for a sequence as service of its tenant."""
        self.charge_tenant(sequence.priority, sequence.tenant, prompt=prompt)

    def charge_tenant(self, priority: int, tenant: str, *, prompt: int = 0, generated: int = 0) -> None:
        self._levels[priority].charge(tenant, PROMPT_WEIGHT * prompt + GENERATED_WEIGHT * generated)


class FairQueue:
    """The waiting sequences of one priority, with the virtual token counters of their tenants."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Sequence]] = {}  # the tenants that wait, each with its sequences by arrival
        self._served: Counter[str] = Counter()  # weighted tokens
        self._last_to_leave = ""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ordered(self) -> Iterator[Sequence]:
        """The oldest sequence of the tenant that was served least, then the next one as if this one were admitted.

        A prompt counts whole, because what of it is cached is not known yet.
        """
        heads = [(self._served[tenant], items[0].number, tenant, 0) for tenant, items in self._waiting.items()]
        heapify(heads)
        while heads:
            served, _, tenant, index = heads[0]
            items = self._waiting[tenant]
            yield items[index]
            if index + 1 == len(items):
                heappop(heads)
            else:
                charged = PROMPT_WEIGHT * items[index].n_prompt if items[index].queued is None else 0
                heapreplace(heads, (served + charged, items[index + 1].number, tenant, index + 1))

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.tenant
        if tenant not in self._waiting:
            least = min(self._served[other] for other in self._waiting or (self._last_to_leave,))
            self._served[tenant] = max(self._served[tenant], least)
            self._waiting[tenant] = []
        insort(self._waiting[tenant], sequence, key=NUMBER)

    def remove(self, sequence: Sequence) -> None:
        waiting = self._waiting[sequence.tenant]
        del waiting[bisect_left(waiting, sequence.number, key=NUMBER)]
        if not waiting:
            del self._waiting[sequence.tenant]
            self._last_to_leave = sequence.tenant

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] += tokens
