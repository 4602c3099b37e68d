"""The places for LoRA adapters: running sequences use only so many different ones at a time.

A waiting sequence whose adapter would be one too many is passed over, and those after it may run. While one is passed
over, the adapter that has had its place longest takes no sequence that comes after it. The sequences of that adapter
end and its place becomes free. So no adapter waits for ever, even if requests for the others never pause.
"""

from service.engine.messages import AdapterStats
from service.engine.scheduling.queue import WaitingQueue
from service.engine.scheduling.sequence import Sequence


class AdapterPlaces:
    """The adapters of the running sequences, and of those in `queue`. 0 stands for no adapter, which needs no place."""

    def __init__(self, n_places: int, queue: WaitingQueue) -> None:
        self._n_places = n_places
        self._queue = queue
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
                closed = next(iter(self._running))
            elif sequence.adapter != closed:
                return sequence
        return None

    def enter(self, sequence: Sequence) -> None:
        """Count a sequence that begins to run. Its adapter takes a place if it has none."""
        if sequence.adapter:
            self._running[sequence.adapter] = self._running.get(sequence.adapter, 0) + 1

    def leave(self, sequence: Sequence) -> None:
        """Count a sequence that runs no more. The last one of its adapter frees the place."""
        if sequence.adapter:
            self._running[sequence.adapter] -= 1
            if not self._running[sequence.adapter]:
                del self._running[sequence.adapter]

    def _may_run(self, adapter: int) -> bool:
        return not adapter or adapter in self._running or len(self._running) < self._n_places
