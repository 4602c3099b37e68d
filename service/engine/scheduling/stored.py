"""The pages of the pools that are on disk, and the sequences that wait for them.

The store gets a full page when it is evicted, while the engine is idle, and at the end. Of a pool with a window it gets
the last pages of a prefix only. Such a prefix is what a sequence reused, its prompt, or all of it when it ended.

A sequence whose prompt goes on on disk is admitted and takes the pages, which the store fills. It computes nothing
meanwhile, others do. Those that need the same pages stay in the queue, and the scheduler passes them over. If a page
cannot be read, the sequence goes back to its place in the queue.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import islice

from model.batch import PoolSpec
from service.engine.prefixes.files import PageKey
from service.engine.prefixes.store import PageRead, PrefixStore
from service.engine.scheduling.pages import PagePool, reusable_blocks
from service.engine.scheduling.sequence import Sequence

IDLE_PAGES = 8
"""Pages that are copied for the store at a time while the engine is idle: a request that comes waits for no more."""
PAUSE_SECONDS = 0.002
"""Between two attempts to save a page at the end, while the queue of the store is full."""


class StoredPool(PagePool):
    """A page pool whose full pages go to a store before they are evicted. `keys` are those of its full pages."""

    def __init__(self, spec: PoolSpec, page_size: int, index: int, store: PrefixStore) -> None:
        super().__init__(spec, page_size)
        self.index = index
        self.keys: dict[bytes, PageKey] = {}
        self._store = store
        self._ends: set[bytes] = set()  # the last pages of prefixes

    def note(self, key: PageKey) -> None:
        """Take the key of a page that has just got its name, if it has it."""
        if self.contains(key.name):
            self.keys[key.name] = key

    def note_ends(self, names: list[bytes]) -> None:
        """Note the last pages of a prefix: all that a prompt which begins with it needs."""
        self._ends.update(filter(self.contains, names))

    def has(self, name: bytes) -> bool:
        """Return whether a page is here or on disk."""
        return self.contains(name) or self._store.has(self.index, name)

    def forget(self, name: bytes) -> None:
        self._store.remove(self.index, name)
        super().forget(name)

    def unname(self, name: bytes) -> int | None:
        self._drop(name)
        return super().unname(name)

    def unsaved(self) -> Iterator[bytes]:
        """Yield the names of cached pages to save, the latest used first."""
        names = map(self._names.__getitem__, reversed(self._cached))
        return (name for name in names if self._is_worth(name) and not self._store.has(self.index, name))

    def save(self, name: bytes) -> bool:
        """Let the store have a page, if it is worth it; returns False if the store takes no more."""
        return not self._is_worth(name) or self._store.save(self._pages[name], self.keys[name])

    def _evict(self, page: int, name: bytes) -> None:
        self.save(name)
        self._drop(name)
        super()._evict(page, name)

    def _is_worth(self, name: bytes) -> bool:
        return name in self.keys and (self.window is None or name in self._ends)

    def _drop(self, name: bytes) -> None:
        self.keys.pop(name, None)
        self._ends.discard(name)


class StoredPrefixes:
    """The pools of an engine over one store, and its sequences that wait for pages: `waiting`.

    `behind` are sequences of the queue that wait for pages of these. `counts` are those of the store, by their names in
    Stats. Without a store nothing is saved, and no sequence waits.
    """

    def __init__(self, specs: tuple[PoolSpec, ...], page_size: int, store: PrefixStore | None) -> None:
        stored = () if store is None else (StoredPool(spec, page_size, n, store) for n, spec in enumerate(specs))
        self._pools = tuple(stored)
        self.pools: tuple[PagePool, ...] = self._pools or tuple(PagePool(spec, page_size) for spec in specs)
        self.waiting: dict[Sequence, PageRead] = {}
        self.behind: set[Sequence] = set()
        self.counts: Mapping[str, int] = {} if store is None else store.counts
        self._store = store
        self._page_size = page_size

    def begin(self, sequence: Sequence) -> bool:
        """Let a sequence that shares the pages in memory go on with those on disk; returns whether there are any."""
        if self._store is None or not sequence.may_reuse:
            return False
        if sequence.computed // self._page_size == sequence.n_reusable:
            return False
        names = sequence.names(sequence.n_reusable)
        names = names[: reusable_blocks(self._pools, names, StoredPool.has)]
        n_tokens = len(names) * self._page_size
        if n_tokens <= sequence.computed or not _fit(sequence, names):
            return False
        if sequence.in_memory is None:
            sequence.in_memory = sequence.computed
        sequence.computed = n_tokens
        self.waiting[sequence] = reading = PageRead(
            [
                (page, _key(sequence, block, pool))
                for pool, table in zip(self._pools, sequence.tables, strict=True)
                for page, block in table.jump(names)
            ]
        )
        self._store.read(reading)
        return True

    def awaited(self, sequence: Sequence) -> bool:
        """Return whether another sequence waits for the page after the computed tokens of this one: it is `behind`."""
        block = sequence.computed // self._page_size
        if not self.waiting or not sequence.may_reuse or block == sequence.n_reusable:
            return False
        name = sequence.names(block + 1)[block]
        if awaited := any(key.name == name for reading in self.waiting.values() for _, key in reading.pages):
            self.behind.add(sequence)
        return awaited

    def cancel(self, sequence: Sequence) -> None:
        """Let nothing be written to the pages of a sequence: it releases them."""
        self.behind.discard(sequence)
        if (reading := self.waiting.pop(sequence, None)) is not None:
            reading.cancel()
            self.behind.clear()

    def arrived(self) -> list[tuple[Sequence, bool]]:
        """Return the sequences that wait no more, and whether all their pages were read. Names the pages that were."""
        found = [(sequence, reading) for sequence, reading in self.waiting.items() if reading.done]
        for sequence, reading in found:
            del self.waiting[sequence]
            self.behind.clear()
            for page, key in reading.pages[: reading.n_read]:
                pool = self._pools[key.pool]
                pool.name(page, key.name)
                pool.note(key)
        return [(sequence, reading.n_read == len(reading.pages)) for sequence, reading in found]

    def note(self, sequence: Sequence, blocks: range) -> None:
        """Take note that these blocks of a sequence are full, and have names."""
        for block in blocks:
            for pool in self._pools:
                pool.note(_key(sequence, block, pool))

    def note_end(self, sequence: Sequence, n_tokens: int) -> None:
        """Take note that the first tokens of a sequence are a prefix that later prompts will probably have."""
        n_blocks = min(n_tokens, len(sequence.tokens)) // self._page_size
        for pool in self._pools:
            if pool.window is not None:
                pool.note_ends(sequence.names(n_blocks)[pool.first_visible_block(n_blocks * self._page_size) :])

    def save_some(self) -> None:
        """Save cached pages if the store is idle. It wakes the loop when they are written."""
        if self._store is not None and not self._store.is_writing:
            for pool in self._pools:
                for name in [*islice(pool.unsaved(), IDLE_PAGES)]:
                    pool.save(name)

    def save_all(self, seconds: float) -> None:
        """Save all pages, the latest first, and wait until they are written: for so long at most."""
        until = time.monotonic() + seconds
        for pool in self._pools:
            for name in reversed(pool.keys):
                while not pool.save(name):
                    time.sleep(PAUSE_SECONDS)
                    if time.monotonic() > until:
                        return
        if self._store is not None:
            self._store.finish(until - time.monotonic())


def _key(sequence: Sequence, block: int, pool: StoredPool) -> PageKey:
    return PageKey(pool.index, sequence.names(block + 1)[block], sequence.parent(block), sequence.content(block))


def _fit(sequence: Sequence, names: list[bytes]) -> bool:
    """Return whether the pages that a sequence does not have of these are available."""
    return all(
        len(names) - max(table.end_block, table.pool.first_visible_block(len(names) * table.pool.page_size))
        <= table.pool.available
        for table in sequence.tables
    )
