"""The changes of the pages that get and lose their names, for routers that follow what a replica has cached."""

from collections.abc import Sequence as Items

from service.engine.messages import PageChange
from service.engine.scheduling.pages import PagePool
from service.engine.scheduling.sequence import Sequence


class PageChanges:
    """The changes since the last `take`, in their order. Until `follow` it stays empty."""

    def __init__(self, pools: Items[PagePool]) -> None:
        self._pools = pools
        self._changes: list[PageChange] = []
        self._follows = False

    def follow(self) -> None:
        self._follows = True
        for pool in self._pools:
            pool.lost = []

    def note(self, sequence: Sequence, blocks: range) -> None:
        """Take note that these blocks of a sequence are computed, or were read from the disk."""
        if not self._follows:
            return
        self._note_lost()
        names = sequence.names(blocks.stop)
        for block in blocks:
            here = (index for index, pool in enumerate(self._pools) if pool.contains(names[block]))
            self._changes += (sequence.change(block, index) for index in here)

    def take(self) -> tuple[PageChange, ...]:
        """Return the changes, and forget them."""
        if not self._follows:
            return ()
        self._note_lost()
        changes, self._changes = self._changes, []
        return (*changes,)

    def _note_lost(self) -> None:
        for index, pool in enumerate(self._pools):
            self._changes += (PageChange(index, name.hex()) for name in pool.lost or ())
            pool.lost = []
