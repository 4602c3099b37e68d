"""Divides the keys of short slices among programs: see `model.kernels.cuda.attention`."""

import triton
import triton.language as tl

from model.kernels.cuda.attention.parts import ITEM

WHOLE = tl.constexpr(2**30)
"""Keys of an item that has all keys of its slice."""


@triton.jit
def _unit(level, SPLIT: tl.constexpr, FAN: tl.constexpr):
    """Return the keys of an item at a level: a part, a group, a section, or all."""
    few = tl.where(level == 0, SPLIT, SPLIT * FAN)
    return tl.where(level < 2, few, tl.where(level == 2, SPLIT * FAN * FAN, WHOLE))


@triton.jit
def _slices(table, index, n_slices, unit, SHORT: tl.constexpr, ORIGIN: tl.constexpr):
    """Return of slices `index`: row, n_queries, start and first key from the origin, page, and how many items it has.

    A slice of more than SHORT queries has no queries here.
    """
    known = index < n_slices
    table += index * 5
    row, n_queries = tl.load(table, mask=known, other=0), tl.load(table + 1, mask=known, other=0)
    start, first_key = tl.load(table + 2, mask=known, other=0), tl.load(table + 3, mask=known, other=0)
    page, origin = tl.load(table + 4, mask=known, other=0), first_key // ORIGIN * ORIGIN
    here, offset = (start - origin).to(tl.int32), (first_key - origin).to(tl.int32)
    n_queries = tl.where(n_queries > SHORT, 0, n_queries).to(tl.int32)
    n_items = tl.where(n_queries > 0, (here + n_queries - 1) // unit - offset // unit + 1, 0)
    return row, n_queries, here, offset, page, n_items


@triton.jit
def _smallest(
    table,
    n_slices,
    n_items,
    n_sums,
    SHORT: tl.constexpr,
    SPLIT: tl.constexpr,
    FAN: tl.constexpr,
    SLICES: tl.constexpr,
):
    """Return the least number of keys of an item for which there are up to n_items items and n_sums sums."""
    level, items, sums = -1, n_items + 1, n_sums + 1
    while ((items > n_items) | (sums > n_sums)) & (level < 3):
        level += 1
        items, sums = 0, 0
        for first in range(0, n_slices, SLICES):
            _, n_queries, _, _, _, count = _slices(
                table, first + tl.arange(0, SLICES), n_slices, _unit(level, SPLIT, FAN), SHORT, SPLIT * FAN * FAN
            )
            items += tl.sum(count, 0)
            sums += tl.sum(count * n_queries, 0)
    return _unit(level, SPLIT, FAN)


@triton.jit(
    do_not_specialize=["n_slices", "n_items", "n_sums"], do_not_specialize_on_alignment=["table", "firsts", "items"]
)
def plan(
    table,
    firsts,  # [S, 2] int32: see `join`
    items,  # [n_items, ITEM] int64
    n_slices,
    n_items,
    n_sums,
    SHORT: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    FAN: tl.constexpr,
    SLICES: tl.constexpr,  # read at a time
    ITEMS: tl.constexpr,
):
    """Write the items of program (ITEMS items); the first program also writes `firsts`.

    Items are as small as their number and that of the sums allow. There must be an item for each short slice, and sums
    for each of its queries.
    """
    unit = _smallest(table, n_slices, n_items, n_sums, SHORT, SPLIT, FAN, SLICES)
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    owner, begin, begin_sum = (
        tl.full([ITEMS], 0, tl.int32),
        tl.full([ITEMS], 0, tl.int32),
        tl.full([ITEMS], 0, tl.int32),
    )
    done, done_sums = 0, 0
    for first in range(0, n_slices, SLICES):
        index = first + tl.arange(0, SLICES)
        known = index < n_slices
        _, n_queries, _, _, _, count = _slices(table, index, n_slices, unit, SHORT, SPLIT * FAN * FAN)
        ends, sum_ends = done + tl.cumsum(count, 0), done_sums + tl.cumsum(count * n_queries, 0)
        if tl.program_id(0) == 0:
            tl.store(firsts + index * 2, sum_ends - count * n_queries, mask=known)
            tl.store(firsts + index * 2 + 1, unit, mask=known)
        before = (ends[None, :] <= item[:, None]) & known[None, :]  # [ITEMS, SLICES]: slices before its own
        owner += tl.sum(before.to(tl.int32), 1)
        begin = tl.maximum(begin, tl.max(tl.where(before, ends[None, :], 0), 1))
        begin_sum = tl.maximum(begin_sum, tl.max(tl.where(before, sum_ends[None, :], 0), 1))
        done, done_sums = tl.max(ends, 0), tl.max(sum_ends, 0)
    row, n_queries, here, offset, page, _ = _slices(table, owner, n_slices, unit, SHORT, SPLIT * FAN * FAN)
    low = (offset // unit + item - begin) * unit
    items, known = items + item * ITEM, item < n_items
    tl.store(items, row, mask=known)
    tl.store(items + 1, n_queries, mask=known)
    tl.store(items + 2, here, mask=known)
    tl.store(items + 3, offset, mask=known)
    tl.store(items + 4, page - offset // PAGE, mask=known)
    tl.store(items + 5, low, mask=known)
    tl.store(items + 6, low + unit, mask=known)
    tl.store(items + 7, begin_sum + (item - begin) * n_queries, mask=known)
