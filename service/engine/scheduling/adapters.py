"""The places for LoRA adapters: running sequences use only so many different ones at a time.

A waiting sequence whose adapter would be one too many is passed over, and those after it may run. While one is passed
over, the adapter that has had its place longest takes no sequence that comes after it. The sequences of that adapter
end and its place becomes free. So no adapter waits for ever, even if requests for the others never pause.

An adapter that has left the memory takes its place before it is read. Its sequences wait until then, and only they.
"""

from collections.abc import Callable, Collection

from service.engine.messages import AdapterStats
from service.engine.scheduling.queue import WaitingQueue
from service.engine.scheduling.sequence import Sequence


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

    def first(self) -> Sequence | None:
        """The first of the waiting sequences that may run now."""
        if not any(map(self._may_run, self._queue.by_adapter)):  # spares the walk through a long queue
            return None
        closed = None  # the adapter that takes no more
        for sequence in self._queue.ordered():
            if not self._may_run(sequence.adapter):
                closed = next(iter(self._running), None)
            elif sequence.adapter != closed and self._in_memory(sequence.adapter):
                return sequence
        return None

    @property
    def reading(self) -> bool:
        """Whether an adapter is being read."""
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
