"""The start of a sequence from computed pages: how much of its prompt they have, and why they have no more.

A tenant learns about its own prompts only, and about those with the same salt only. The pages of others could tell it
token by token what they hold.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from operator import itemgetter
from zlib import crc32

from model.batch import PageCopy
from service.engine.messages import PrefixMiss
from service.engine.scheduling.pages import PagePool, Table, page_name, reusable_blocks
from service.engine.scheduling.sequence import Sequence
from service.engine.scheduling.step import Step

LARGEST = 32_768
"""Blocks that are remembered at most; twice as many as the largest pool has pages. They take about 16 MB."""
BRANCHES = 32
"""Different continuations of one block that are remembered, the newest."""
LEAST_COPIED = 4
"""Tokens that are worth a copy of their page: under the embedded model, a copy takes as long as three."""


def reuse(sequence: Sequence, pools: Items[PagePool]) -> None:
    """Hold pages with the sequence's first tokens. The last one is always computed."""
    if not sequence.may_reuse:
        return
    names = sequence.names(sequence.n_reusable)
    names = names[: reusable_blocks(pools, names)]
    for table in sequence.tables:
        table.jump(names)
    sequence.computed = len(names) * pools[0].page_size


def copy_part(sequence: Sequence, trail: "Trail", steps: Items[Step]) -> list[PageCopy]:
    """Let a sequence that may begin continue inside a page, whose first tokens are also those of a page in the cache.

    It takes a page in each pool, and the page in the cache must be copied there. The source page may be evicted before
    the step runs. That is safe: its new owner writes after the copy. Pages that `steps` compute are not there yet.
    """
    if not sequence.may_reuse:
        return []
    n_tokens, name = trail.alike(sequence, sequence.computed // sequence.tables[0].pool.page_size, steps)
    if n_tokens < LEAST_COPIED:
        return []
    sequence.computed += n_tokens
    copies = []
    for index, table in enumerate(sequence.tables):
        source = table.pool.find(name)
        table.grow(sequence.computed)
        table.roll(sequence.computed)
        copies.append(PageCopy(index, source, table.pages[-1]))
    return copies


def unname(steps: Collection[Step], owner: Sequence, pools: Items[PagePool]) -> list[set[int | None]]:
    """Take the names that a sequence gives in these steps from their pages; returns the pages of each pool."""
    pages: list[set[int | None]] = [set() for _ in pools]
    for step in steps:
        for index, name in step.take_names(owner):
            pages[index].add(pools[index].unname(name))
    return pages


def withdraw(
    steps: Collection[Step], owners: Iterable[Sequence], pools: Items[PagePool], running: Collection[Sequence]
) -> list[Sequence]:
    """Take the names from the pages that these sequences did not compute in these steps.

    Returns the running sequences that have shared such a page: their results mean nothing, nor do their own pages. Of
    sequences that have ended nobody knows what they have shared: their names go as well.
    """
    doubtful, shared = [*owners], dict[Sequence, None]()
    if doubtful:
        doubtful += {item: None for step in steps for item in step.named.values() if item not in running}
    for owner in doubtful:
        pages = unname(steps, owner, pools)
        found = [item for item in running if item is not owner and item not in shared and item.holds(pages)]
        shared |= dict.fromkeys(found)
        doubtful += found
    return [*shared]


def promised(n_pools: int, unfinished: Collection[Sequence], n_running: int, chunk: int) -> list[int]:
    """Return how many pages of each pool the work left of `unfinished` sequences takes, and one more of each.

    Of the running sequences these have more than one token to compute. The steps in flight compute at most `chunk`
    tokens of one sequence.
    """
    return [
        n_running + sum(_pages_needed(item, item.tables[index], chunk) for item in unfinished)
        for index in range(n_pools)
    ]


def fits(sequence: Sequence, kept: Items[int], chunk: int) -> bool:
    """Return whether the pages suffice for the sequence if so many of each pool are `kept` for others."""
    return all(
        table.pool.available >= _pages_needed(sequence, table, chunk) + n
        for table, n in zip(sequence.tables, kept, strict=True)
    )


def _pages_needed(sequence: Sequence, table: Table, chunk: int) -> int:
    """Return the number of pages that the sequence will take until all its known tokens are computed."""
    limit = table.pool.max_blocks(sequence.length, chunk)
    return max(0, min(table.missing(sequence.length), limit - len(table.pages)))


class Trail:
    """The blocks of tokens that were computed, by tenant and by the name of the page before them.

    Names begin with salt and adapter, so these divide the blocks as they divide the pages. The least recently computed
    blocks are forgotten first. The last block of a sequence may be shorter than a page.
    """

    def __init__(self, pools: Items[PagePool]) -> None:
        self._pools = pools
        self._page_size = pools[0].page_size
        self._limit = min(2 * max(pool.n_pages for pool in pools), LARGEST)
        self._blocks: OrderedDict[tuple[str, bytes], tuple[array[int], ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def note(self, sequence: Sequence, blocks: range, end: int) -> None:
        """Remember what is computed of these blocks of a sequence: positions before `end`."""
        memory = self._blocks
        for block in blocks:
            key = (sequence.tenant, sequence.parent(block))
            tokens = array("i", self._tokens(sequence, block, end))
            known = memory.get(key)
            if known is None:
                memory[key] = (tokens,)
                continue
            if tokens not in known:
                memory[key] = (*known, tokens)[-BRANCHES:]
            memory.move_to_end(key)
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)

    def note_end(self, sequence: Sequence) -> None:
        """Remember the last block of a sequence that ends."""
        block = sequence.computed // self._page_size
        if sequence.computed % self._page_size:
            self.note(sequence, range(block, block + 1), sequence.computed)

    def miss(self, sequence: Sequence, n_reused: int) -> PrefixMiss | None:
        """Return where the prompt left the cached prefix of `n_reused` blocks; None if no more could be reused."""
        if n_reused == sequence.n_reusable:
            return None
        at = n_reused * self._page_size
        if not sequence.may_reuse:
            return PrefixMiss(at, "bypassed")
        known = self._blocks.get((sequence.tenant, sequence.parent(n_reused)))
        if known is None:
            return PrefixMiss(at, "salt" if sequence.salt and not n_reused else "new")
        tokens = self._tokens(sequence, n_reused, len(sequence.tokens))
        n_common, continued = max((_common(tokens, other), _common(tokens, other) == len(other)) for other in known)
        if n_common == self._page_size:
            return PrefixMiss(at, self._gone(sequence.parent(n_reused + 1)))
        return PrefixMiss(at + n_common, "new" if continued or not at + n_common else "diverged")

    def alike(self, sequence: Sequence, block: int, steps: Items[Step] = ()) -> tuple[int, bytes]:
        """Return how many first tokens of this block a page in all pools has at most, and that page's name.

        The last known token does not count. A page in which media start is not found: a number stands for them here.
        Neither is one that `steps` compute.
        """
        parent = sequence.parent(block)
        tokens = self._tokens(sequence, block, len(sequence.tokens) - 1)
        known = self._blocks.get((sequence.tenant, parent), ())
        for n, other in sorted(((_common(tokens, other), other) for other in known), key=itemgetter(0), reverse=True):
            name = page_name(parent, other)
            if all(pool.contains(name) for pool in self._pools) and not any(step.names(name) for step in steps):
                return n, name
        return 0, b""

    def _gone(self, name: bytes) -> str:
        """Return why a computed block cannot be reused: its page is gone, or pages of the window before it are."""
        found = [pool.contains(name) for pool in self._pools]
        full = [has for pool, has in zip(self._pools, found, strict=True) if pool.window is None]
        return "window" if any(found) and all(full) else "evicted"

    def _tokens(self, sequence: Sequence, block: int, end: int) -> list[int]:
        """Return a block's tokens before position `end`. A number from its digest stands for the first of an item."""
        tokens = sequence.tokens[block * self._page_size : min((block + 1) * self._page_size, end)]
        for place, digest in sequence.media_starts(block):
            if place < len(tokens):
                tokens[place] = -1 - crc32(digest.encode()) // 2
        return tokens


def _common(tokens: Items[int], other: Items[int]) -> int:
    """Return the number of tokens at the beginning that are the same."""
    return next(
        (n for n, (a, b) in enumerate(zip(tokens, other, strict=False)) if a != b), min(len(tokens), len(other))
    )
