"""The sequences that wait and run: a queue by priority, in fair shares for tenants, and by arrival; adapters' places.

The shares follow the Virtual Token Counter of "Fairness in Serving Large Language Models" (arXiv 2401.00588). Each
tenant has a counter of the tokens that it was served. The tenant with the lowest counter is next. A tenant that comes
back is lifted to the lowest counter of those that wait, so that it gains nothing by having been idle. While two
tenants wait, the difference of their service stays within a bound that no flood can change.

Running sequences use only so many different LoRA adapters at a time. A waiting sequence whose adapter would be one too
many is passed over, and those after it may run. While one is passed over, the adapter that has had its place longest
takes no sequence that comes after it. The sequences of that adapter end and its place becomes free. So no adapter waits
for ever, even if requests for the others never pause. An adapter that has left the memory takes its place before it is
read. Its sequences wait until then, and only they.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator
from heapq import heapify, heappop, heapreplace
from operator import attrgetter

from service.engine.messages import AdapterStats
from service.engine.scheduling.sequence import Sequence

PROMPT_WEIGHT = 1
GENERATED_WEIGHT = 2
"""The paper's weights: the cost of a prompt token that is computed, and of a generated one."""
NUMBER = attrgetter("number")

Share = tuple[int, str]


class WaitingQueue:
    """All sequences that wait. Each priority has its own shares: one that is not served there earns no credit here.

    A share is a priority and a tenant, and has a virtual token counter. `by_adapter` counts the sequences by the number
    of their LoRA adapter.
    """

    def __init__(self) -> None:
        self.by_adapter: Counter[int] = Counter()
        self._waiting: dict[Share, list[Sequence]] = {}  # the shares that wait, each with its sequences by arrival
        self._served: Counter[Share] = Counter()  # weighted tokens
        self._last_to_leave: dict[int, Share] = {}  # by priority

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ordered(self) -> Iterator[Sequence]:
        """Yield the waiting sequences in the order of their admission, if no more come and no tokens are generated.

        In each priority the next one is the oldest of the tenant that was served least. A prompt counts whole: how much
        of it is cached is not known yet.
        """
        heads = [(share[0], self._served[share], items[0].number, share, 0) for share, items in self._waiting.items()]
        heapify(heads)
        while heads:
            priority, served, _, share, index = heads[0]
            items = self._waiting[share]
            yield items[index]
            if index + 1 == len(items):
                heappop(heads)
            else:
                charged = PROMPT_WEIGHT * items[index].n_prompt if items[index].admitted is None else 0
                heapreplace(heads, (priority, served + charged, items[index + 1].number, share, index + 1))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, a preempted one at its old place among those of its tenant."""
        priority, share = sequence.priority, (sequence.priority, sequence.tenant)
        if share not in self._waiting:
            others = [other for other in self._waiting if other[0] == priority]
            least = min(self._served[other] for other in others or (self._last_to_leave.get(priority, share),))
            self._served[share] = max(self._served[share], least)
            self._waiting[share] = []
        insort(self._waiting[share], sequence, key=NUMBER)
        self.by_adapter[sequence.adapter] += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out, because it is admitted or aborted."""
        share = sequence.priority, sequence.tenant
        waiting = self._waiting[share]
        del waiting[bisect_left(waiting, sequence.number, key=NUMBER)]
        if not waiting:
            del self._waiting[share]
            self._last_to_leave[sequence.priority] = share
        self.by_adapter[sequence.adapter] -= 1
        if not self.by_adapter[sequence.adapter]:
            del self.by_adapter[sequence.adapter]

    def charge(self, priority: int, tenant: str, *, prompt: int = 0, generated: int = 0) -> None:
        """Count tokens that were computed for a tenant's sequences as its service."""
        self._served[priority, tenant] += PROMPT_WEIGHT * prompt + GENERATED_WEIGHT * generated


class AdapterPlaces:
    """The adapters of the running sequences, and of those in `queue`. 0 stands for no adapter, which needs no place.

    `ready` gets an adapter and the running ones. It returns whether the adapter is in memory. If not, it has the
    adapter read, and `note_read` follows, also if it cannot be read: the first step then tells why.
    """

    def __init__(self, n_places: int, queue: WaitingQueue, ready: Callable[[int, Collection[int]], bool]) -> None:
        self._n_places = n_places
        self._queue = queue
        self._ready = ready
        self._reading: set[int] = set()
        self._read: set[int] = set()  # and not used since
        self._running: dict[int, int] = {}  # adapter -> its sequences; the adapter that has its place longest is first

    @property
    def stats(self) -> tuple[AdapterStats, ...]:
        running, waiting = self._running, self._queue.by_adapter
        used = dict.fromkeys((*running, *waiting))
        return tuple(AdapterStats(item, running.get(item, 0), waiting[item]) for item in used if item)

    def check(self, adapter: int) -> None:
        """Raise ValueError for an adapter that could never run."""
        if adapter and not self._n_places:
            raise ValueError(f"adapter {adapter} cannot be used: this engine takes no LoRA adapters")

    def first(self, behind: Container[Sequence] = ()) -> Sequence | None:
        """Return the first of the waiting sequences that may run now, without those `behind` others."""
        if not any(map(self._may_run, self._queue.by_adapter)):  # spares the walk through a long queue
            return None
        closed = None  # the adapter that takes no more
        for sequence in self._queue.ordered():
            if sequence in behind:
                continue
            if not self._may_run(sequence.adapter):
                closed = next(iter(self._running), None)
            elif sequence.adapter != closed and self._in_memory(sequence.adapter):
                return sequence
        return None

    @property
    def reading(self) -> bool:
        return bool(self._reading)

    def note_read(self, adapter: int) -> None:
        """Take note that an adapter has been read, or cannot be."""
        self._reading.discard(adapter)
        self._read.add(adapter)

    def enter(self, sequence: Sequence) -> None:
        """Count a sequence that begins to run. Its adapter takes a place if it has none."""
        if sequence.adapter:
            self._running[sequence.adapter] = self._running.get(sequence.adapter, 0) + 1
            self._read.discard(sequence.adapter)

    def leave(self, sequence: Sequence) -> None:
        """Count a sequence that runs no more. The last one of its adapter frees the place."""
        if sequence.adapter:
            self._running[sequence.adapter] -= 1
            if not self._running[sequence.adapter]:
                del self._running[sequence.adapter]

    def _may_run(self, adapter: int) -> bool:
        holds_place = not adapter or adapter in self._running or adapter in self._reading
        return holds_place or len(self._running) + len(self._reading) < self._n_places

    def _in_memory(self, adapter: int) -> bool:
        if not adapter or adapter in self._running or adapter in self._read:
            return True
        if adapter not in self._reading and not self._ready(adapter, tuple(self._running)):
            self._reading.add(adapter)
        return adapter not in self._reading


class Running(dict[Sequence, None]):
    """The running sequences: an ordered set, oldest first."""

    @property
    def unfinished(self) -> list[Sequence]:
        """Return those that have more than one token to compute."""
        return [item for item in self if item.uncomputed > 1]

    def in_order(self, depth: int, waiting: Container[Sequence] = ()) -> list[Sequence]:
        """Return all but those that are `waiting`, in the order in which they get their tokens of a step.

        Of those that decode, each of the `depth` steps in flight has an even share: those that have waited longest.
        """
        decoding: list[Sequence] = []
        unfinished: list[Sequence] = []
        for item in self:
            if item in waiting:
                continue
            (unfinished if item.awaits_media or item.length - item.computed > 1 else decoding).append(item)
        ready = [item for item in decoding if item.length > item.computed and not item.complete]
        share = -(-len(decoding) // depth)
        if share < len(ready):
            ready = sorted(ready, key=lambda item: item.last_step)[:share]
        return ready + unfinished

    def holding(self, media: Collection[int]) -> list[Sequence]:
        """Return those that hold one of the media with these numbers."""
        if not media:  # spares the walk through all sequences in every step
            return []
        return [item for item in self if any(number in media for number in item.media.held)]
