"""Whether a waiting sequence may begin: the pages that the cache has for it, and those that it and others will need."""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items

from model.batch import PageCopy
from service.engine.scheduling.pages import PagePool, Table, reusable_blocks
from service.engine.scheduling.sequence import Sequence
from service.engine.scheduling.step import Step
from service.engine.scheduling.trail import Trail

LEAST_COPIED = 4
"""Tokens that are worth a copy of their page: under the embedded model, a copy takes as long as three."""


def reuse(sequence: Sequence, pools: Items[PagePool]) -> int:
    """Share pages that hold the sequence's first tokens; returns how many. The last token is always computed."""
    if not sequence.may_reuse:
        return 0
    names = sequence.names(sequence.n_reusable)
    names = names[: reusable_blocks(pools, names)]
    for table in sequence.tables:
        table.share(names)
    sequence.computed = len(names) * pools[0].page_size
    return sequence.computed


def copy_part(sequence: Sequence, trail: Trail) -> list[PageCopy]:
    """Let a sequence that may begin continue inside a page, whose first tokens are also those of a page in the cache.

    It takes a page in each pool, and the page in the cache must be copied there. The source page may be evicted before
    the step runs. That is safe: its new owner writes after the copy.
    """
    if not sequence.may_reuse:
        return []
    n_tokens, name = trail.alike(sequence, sequence.computed // sequence.tables[0].pool.page_size)
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


def awaits_page(sequence: Sequence, reused: int, in_flight: Iterable[Step]) -> bool:
    """Whether a step in flight computes the page that follows the `reused` tokens.

    Pages get their names when the step is committed. A sequence that did not wait would compute the same tokens again.
    Nobody waits for a sequence that has ended, of which nothing is computed any more: its pages get no names.
    """
    size = sequence.tables[0].pool.page_size
    block = reused // size
    if not sequence.may_reuse or block == sequence.n_reusable:
        return False
    name = sequence.names(block + 1)[block]
    parts = [(item, *part) for step in in_flight for item, part in step.parts.items() if item.computed]
    return any(
        start // size <= block < min(stop, len(item.tokens)) // size and item.names(block + 1)[block] == name
        for item, start, stop in parts
    )


def fits(sequence: Sequence, unfinished: Collection[Sequence], n_running: int, chunk: int) -> bool:
    """Whether there are pages for the sequence, for what the `unfinished` ones still compute, and one more for each.

    Of the running sequences these have more than one token to compute. The steps in flight compute at most `chunk`
    tokens of one sequence.
    """
    for index, table in enumerate(sequence.tables):
        promised = sum(_pages_needed(item, item.tables[index], chunk) for item in unfinished) + n_running
        if table.pool.available < _pages_needed(sequence, table, chunk) + promised:
            return False
    return True


def _pages_needed(sequence: Sequence, table: Table, chunk: int) -> int:
    """Number of pages that the sequence will take until all its known tokens are computed."""
    limit = table.pool.max_blocks(sequence.length, chunk)
    return max(0, min(table.missing(sequence.length), limit - len(table.pages)))
