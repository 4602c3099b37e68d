"""The page pools and the sequences' page tables: who holds a page, and what it contains. Page ids only, no tensors.

A page is *held* (sequences use it), *cached* (no sequence uses it, but its content may be reused; the least recently
used page is evicted first) or *free*. The name of a full page is a chained hash of all tokens up to its end, so that
equal names mean equal keys and values; the digests of the media that start in a page are part of its name. The last
page of a sequence that ended has a name by fewer tokens: others may copy it, and nobody shares it. Salt, owner and
LoRA adapter seed the chain: a request with another salt, owner or adapter never finds these pages.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from model.batch import PageTable, PoolSpec, max_pages
from service.engine.picture import PoolPages

NAME_BYTES = 16
NO_PAGES = array("q")


def chain_seed(salt: str, adapter: str = "", owner: str = "") -> bytes:
    """Return the parent of a sequence's first page in the chain. No page has this name, whatever its tokens are.

    `adapter` names a LoRA adapter, "" stands for none. `owner` has at most 64 bytes.
    """
    if not salt and not adapter and not owner:
        return b""
    other = blake2b(adapter.encode(), digest_size=16).digest() if adapter else b""
    seed = blake2b(salt.encode(), key=owner.encode(), digest_size=NAME_BYTES, salt=other, person=b"cache salt")
    return seed.digest()


def page_content(tokens: Sequence[int], media: Sequence[tuple[int, str]] = ()) -> bytes:
    """Return the tokens of a page, and the media that start in it, as bytes. Arguments: as of `page_name`."""
    return array("q", tokens).tobytes() + (repr([*media]).encode() if media else b"")


def page_name(parent: bytes, tokens: Sequence[int], media: Sequence[tuple[int, str]] = ()) -> bytes:
    """Name the page that holds `tokens` and follows the page named `parent` (a first page: `chain_seed`).

    `media` are the media that start in the page: the place of the first token in the page, and the digest. Pages of
    one engine have equally many tokens, so that no token can be taken for a part of a media item.
    """
    return blake2b(page_content(tokens, media), key=parent, digest_size=NAME_BYTES).digest()


class PagePool:
    """Pages of all layers that share one window."""

    def __init__(self, spec: PoolSpec, page_size: int) -> None:
        self.window = spec.window
        self.page_size = page_size
        self.n_pages = spec.n_pages
        self._free = list(range(spec.n_pages - 1, -1, -1))
        self._holders = [0] * spec.n_pages
        self._n_held = 0
        self._n_shared = 0  # pages that two or more sequences hold
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._names: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}
        self.lost: list[bytes] | None = None  # names that pages have lost; None: nobody follows them

    @property
    def available(self) -> int:
        """Return the number of pages that `take` can give: free ones, then cached ones, which it evicts."""
        return len(self._free) + len(self._cached)

    @property
    def stats(self) -> PoolPages:
        sizes = self.window, self.page_size, self.n_pages
        return PoolPages(*sizes, self._n_held, self._n_shared, len(self._cached), len(self._free))

    def is_shared(self, page: int) -> bool:
        return self._holders[page] > 1

    def blocks(self, n_tokens: int) -> int:
        """Return the number of pages that cover `n_tokens` positions from 0."""
        return -(-n_tokens // self.page_size)

    def first_visible_block(self, position: int) -> int:
        """Return the first block with a position that the token at `position`, or a later one, attends to.

        Window 5, page size 4, position 9: it sees 5..9, so block 1 (positions 4..7) is the first.
        """
        if self.window is None:
            return 0
        return max(0, position - self.window + 1) // self.page_size

    def max_blocks(self, n_tokens: int, chunk: int) -> int:
        """Return how many pages a sequence of `n_tokens` holds at one time at most, computed `chunk` tokens a step."""
        return max_pages(self.window, n_tokens, self.page_size, chunk)

    def contains(self, name: bytes) -> bool:
        """Return whether a held or cached page has this content."""
        return name in self._pages

    def find(self, name: bytes) -> int:
        """Find the page of this name. A cached one becomes the last to be evicted. Raises KeyError if there is none."""
        page = self._pages[name]
        if page in self._cached:
            self._cached.move_to_end(page)
        return page

    def take(self) -> int:
        """Take a page to write to, held once. Raises IndexError if none is available."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._evict(page, self._names.pop(page))
        else:
            raise IndexError("no page is available")
        self._holders[page] = 1
        self._n_held += 1
        return page

    def _evict(self, page: int, name: bytes) -> None:
        del self._pages[name]
        self._note_lost(name)

    def _note_lost(self, name: bytes) -> None:
        if self.lost is not None:
            self.lost.append(name)

    def share(self, name: bytes) -> int:
        """Hold the page of this name once more, to read only. Raises KeyError if there is none."""
        page = self._pages[name]
        if self._holders[page] == 0:
            del self._cached[page]
            self._n_held += 1
        self._holders[page] += 1
        self._n_shared += self._holders[page] == 2
        return page

    def name(self, page: int, name: bytes) -> bool:
        """Name a held page by its content, which is final; returns False if the page or another one has the name."""
        if name in self._pages or page in self._names:
            return False
        self._names[page] = name
        self._pages[name] = page
        return True

    def forget(self, name: bytes) -> None:
        """Take this name from its page, wherever it is: the content is broken."""
        self.unname(name)

    def unname(self, name: bytes) -> int | None:
        """Take this name from its page, and return the page, if one has it.

        Who holds the page keeps it; a cached page becomes free.
        """
        page = self._pages.pop(name, None)
        if page is None:
            return None
        del self._names[page]
        self._note_lost(name)
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)
        return page

    def release(self, page: int) -> None:
        """Release one hold. After the last one the page is cached if it has a name, else free."""
        if self._holders[page] < 1:
            raise ValueError(f"page {page} is released but not held")
        self._holders[page] -= 1
        self._n_shared -= self._holders[page] == 1
        if self._holders[page]:
            return
        self._n_held -= 1
        if page in self._names:
            self._cached[page] = None
        else:
            self._free.append(page)

    def check(self) -> None:
        """Raise AssertionError unless free + cached + held = total and every name leads back to its page."""
        held = sum(1 for holders in self._holders if holders)
        assert held == self._n_held, f"{held} pages have holders, {self._n_held} are counted"
        shared = sum(1 for holders in self._holders if holders > 1)
        assert shared == self._n_shared, f"{shared} pages have several holders, {self._n_shared} are counted"
        assert len(self._free) + len(self._cached) + held == self.n_pages, "free + cached + held is not the total"
        assert len(set(self._free) | set(self._cached)) == len(self._free) + len(self._cached), "a page is listed twice"
        assert not any(self._holders[page] for page in (*self._free, *self._cached)), "a page in use may be given away"
        assert {page: name for name, page in self._pages.items()} == self._names, "names and pages disagree"


Contains = Callable[[Any, bytes], bool]
"""A method of a kind of pool: it returns whether the pool has the page of a name."""


def reusable_blocks(pools: Sequence[PagePool], names: Sequence[bytes], contains: Contains = PagePool.contains) -> int:
    """Return the number of blocks that a sequence with these page names need not compute.

    A windowed pool must have the blocks that the next token sees, a pool of full attention all of them: `contains`.
    """
    for pool in pools:
        if pool.window is None:
            names = [*takewhile(partial(contains, pool), names)]
    windowed = [pool for pool in pools if pool.window is not None]
    runs = [_runs(pool, names, contains) for pool in windowed]
    for blocks in range(len(names), 0, -1):
        if all(
            run[blocks] >= blocks - pool.first_visible_block(blocks * pool.page_size)
            for pool, run in zip(windowed, runs, strict=True)
        ):
            return blocks
    return 0


def _runs(pool: PagePool, names: Sequence[bytes], contains: Contains) -> list[int]:
    """Return `runs`: `runs[b]` counts the blocks in a row, ending just before block b, that this pool has."""
    runs = [0]
    for name in names:
        runs.append(runs[-1] + 1 if contains(pool, name) else 0)
    return runs


class Table:
    """Page table of one sequence in one pool: `pages[i]` holds logical block `first_block + i`.

    `view` is the table as slices have it. A change replaces it and the array in it, so that a slice may hold them.
    `stop` is the position after the last one that has a page.
    """

    __slots__ = ("first_block", "pages", "pool", "stop", "view")

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self._set(0, NO_PAGES)

    @property
    def end_block(self) -> int:
        return self.first_block + len(self.pages)

    def missing(self, n_tokens: int) -> int:
        """Return the number of pages to take before position `n_tokens - 1` can be written."""
        return 0 if n_tokens <= self.stop else self.pool.blocks(n_tokens) - self.end_block

    def capacity(self) -> int:
        """Return the length that the sequence can reach with its own pages and all that are available."""
        return self.stop + self.pool.available * self.pool.page_size

    def grow(self, n_tokens: int) -> None:
        """Take the pages that `n_tokens` positions need."""
        if missing := self.missing(n_tokens):
            self._set(self.first_block, self.pages + array("q", [self.pool.take() for _ in range(missing)]))

    def jump(self, names: Sequence[bytes]) -> list[tuple[int, int]]:
        """Continue behind the pages of these names: share those that the next token sees, and take what is not here.

        Returns the pages to fill, with their blocks. The first pages of the names may be in the table already. As many
        pages as are new must be available.
        """
        first = self.pool.first_visible_block(len(names) * self.pool.page_size)
        start = max(first, self.end_block)
        new = names[start:]
        # First of all hold the pages that are there: `take` evicts others.
        found = {name: self.pool.share(name) for name in new if self.pool.contains(name)}
        pages = [found[name] if name in found else self.pool.take() for name in new]
        self.roll(len(names) * self.pool.page_size)
        self._set(first, self.pages + array("q", pages))
        return [(page, start + n) for n, page in enumerate(pages) if new[n] not in found]

    def shrink(self, n_tokens: int) -> None:
        """Release the pages after the first `n_tokens` positions."""
        n_blocks = max(0, self.pool.blocks(n_tokens) - self.first_block)
        for page in reversed(self.pages[n_blocks:]):
            self.pool.release(page)
        self._set(self.first_block, self.pages[:n_blocks])

    def roll(self, next_position: int) -> None:
        """Release the pages that have left the window of the next token to compute."""
        n_left = min(self.pool.first_visible_block(next_position) - self.first_block, len(self.pages))
        if n_left > 0:
            for page in self.pages[:n_left]:
                self.pool.release(page)
            self._set(self.first_block + n_left, self.pages[n_left:])

    def clear(self) -> None:
        """Release all pages, the last first: other sequences share the first ones more often."""
        for page in reversed(self.pages):
            self.pool.release(page)
        self._set(0, NO_PAGES)

    def _set(self, first_block: int, pages: "array[int]") -> None:
        self.first_block = first_block
        self.pages = pages
        self.view = PageTable(first_block, pages)
        self.stop = (first_block + len(pages)) * self.pool.page_size
