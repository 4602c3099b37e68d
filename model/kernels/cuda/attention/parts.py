"""Attention of slices of a few queries, whose keys many programs share: see `model.kernels.cuda.attention`."""

import triton
import triton.language as tl

from model.kernels.cuda import attention
from model.kernels.cuda.attention.walk import fold, fold_up, in_groups, mean, nothing, queries

ITEM = tl.constexpr(attention.ITEM)


@triton.jit(do_not_specialize=["n_tiles"], do_not_specialize_on_alignment=["pages", "items"])
def attend_parts(
    q,  # [T, N_HEADS, WIDTH]
    keys,
    values,
    pages,
    items,  # [n_items, ITEM] int64
    tops,  # [n_sums, N_HEADS, 2] float32: top and total
    parts,  # [n_sums, N_HEADS, VALUE] float32
    n_tiles,
    window,
    scale,
    N_KV: tl.constexpr,
    N_HEADS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    TURNING: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    FAN: tl.constexpr,
    DOT: tl.constexpr,  # format of the factors of products
):
    """Compute the sums over the keys of an item in program (item and tile, group of heads)."""
    item, query = (tl.program_id(0) // n_tiles).to(tl.int64), tl.program_id(0) % n_tiles * QUERIES
    group = tl.program_id(1)
    items += item * ITEM
    n_queries = tl.load(items + 1).to(tl.int32)
    if query >= n_queries:
        return
    row, here, offset = tl.load(items), tl.load(items + 2).to(tl.int32), tl.load(items + 3).to(tl.int32)
    pages += tl.load(items + 4)
    low, high = tl.load(items + 5).to(tl.int32), tl.load(items + 6).to(tl.int32)
    rows, width = tl.arange(0, QUERIES * HEADS), tl.arange(0, PADDED)
    mine, member = query + rows // HEADS, rows % HEADS
    known = (mine < n_queries) & (member < HEADS_PER_GROUP)
    heads = group * HEADS_PER_GROUP + member
    query_heads, turning = queries(q, (row + mine) * N_HEADS + heads, known, WIDTH, VALUE, PADDED, TURNING, DOT)
    seen = tl.maximum(offset, here + query - window + 1)  # the first key that the first query sees
    beyond = here + tl.minimum(query + QUERIES, n_queries)
    top, total, sums = in_groups(
        query_heads, turning, here + mine, pages, keys + group % N_KV * (PAGE * WIDTH),
        values + group % N_KV * (PAGE * WIDTH), tl.maximum(low, seen), tl.minimum(high, beyond), window, scale,
        N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, SPLIT, FAN,
    )  # fmt: skip
    place = (tl.load(items + 7) + mine) * N_HEADS + heads
    tl.store(tops + place * 2, top, mask=known)
    tl.store(tops + place * 2 + 1, total, mask=known)
    parts += place[:, None] * VALUE + width[None, :]
    tl.store(parts, sums, mask=known[:, None] & (width < VALUE)[None, :])


@triton.jit(do_not_specialize=["max_queries"], do_not_specialize_on_alignment=["table", "firsts"])
def join(
    tops,
    parts,
    table,
    firsts,  # [S, 2] int32: the place of a slice's first sums, keys of an item
    out,  # [T, N_HEADS, VALUE]
    max_queries,
    SHORT: tl.constexpr,
    N_HEADS: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    SPLIT: tl.constexpr,
    FAN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Fold the sums of `attend_parts` in order in program (slice and query, block of heads)."""
    index, query = tl.program_id(0) // max_queries, tl.program_id(0) % max_queries
    table += index * 5
    n_queries = tl.load(table + 1).to(tl.int32)
    if (n_queries > SHORT) | (query >= n_queries):
        return
    row, start, first_key = tl.load(table), tl.load(table + 2), tl.load(table + 3)
    origin = first_key // (SPLIT * FAN * FAN) * (SPLIT * FAN * FAN)
    first, unit = tl.load(firsts + index * 2).to(tl.int64), tl.load(firsts + index * 2 + 1)
    before = (first_key - origin).to(tl.int32) // unit
    n_units = ((start - origin).to(tl.int32) + n_queries - 1) // unit - before + 1
    heads, width = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, PADDED)
    known = (heads < N_HEADS)[:, None] & (width < VALUE)[None, :]
    group, section, every = nothing(HEADS, PADDED), nothing(HEADS, PADDED), nothing(HEADS, PADDED)
    for i in tl.range(0, n_units, num_stages=STAGES):
        place = (first + i * n_queries + query) * N_HEADS + heads
        part = (
            tl.load(tops + place * 2, mask=heads < N_HEADS, other=float("-inf")),
            tl.load(tops + place * 2 + 1, mask=heads < N_HEADS, other=0.0),
            tl.load(parts + place[:, None] * VALUE + width[None, :], mask=known, other=0.0),
        )
        group = fold(group, part)
        group, section, every = fold_up((before + i + 1) * unit, group, section, every, HEADS, PADDED, SPLIT, FAN)
    at = ((row + query) * N_HEADS + heads)[:, None] * VALUE + width[None, :]
    tl.store(out + at, mean(fold(every, fold(section, group))).to(out.dtype.element_ty), mask=known)
