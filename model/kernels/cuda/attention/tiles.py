"""Attention of slices of many queries, in tiles of queries: see `model.kernels.cuda.attention`."""

import triton
import triton.language as tl

from model.kernels.cuda.attention.walk import in_blocks, in_groups, mean, nothing, queries


@triton.jit
def _slice_of(tile, table, n_slices, QUERIES: tl.constexpr):
    """Find the slice of a tile, by bisection. Tiles of slice i begin at `row / QUERIES + i`: slices share none."""
    index, beyond = 0, n_slices
    while index + 1 < beyond:
        middle = (index + beyond) // 2
        reached = tl.load(table + middle * 5) // QUERIES + middle <= tile
        index = tl.where(reached, middle, index)
        beyond = tl.where(reached, beyond, middle)
    return index


@triton.jit
def _in_three(
    q, turning, position, pages, keys, values, seen, common, here, last, window, scale,
    N_KV: tl.constexpr, WIDTH: tl.constexpr, VALUE: tl.constexpr, PADDED: tl.constexpr,
    KEYS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Add the keys seen..last. Every query sees all keys common..here: the blocks among them need no mask."""
    left = (common + KEYS - 1) // KEYS * KEYS
    right = tl.maximum(left, (here + 1) // KEYS * KEYS)
    sums = nothing(q.shape[0], PADDED)
    sums = in_blocks(
        sums, q, turning, position, pages, keys, values, seen, tl.minimum(left, last + 1), window, scale,
        N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, True,
    )  # fmt: skip
    sums = in_blocks(
        sums, q, turning, position, pages, keys, values, left, right, window, scale,
        N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, False,
    )  # fmt: skip
    return in_blocks(
        sums, q, turning, position, pages, keys, values, right, last + 1, window, scale,
        N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_slices"], do_not_specialize_on_alignment=["pages", "table"])
def attend_tiles(
    q,  # [T, N_HEADS, WIDTH]
    keys,
    values,
    pages,
    table,
    out,  # [T, N_HEADS, VALUE]
    n_slices,
    window,
    scale,
    SHORT: tl.constexpr,
    FIXED: tl.constexpr,
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
    DOT: tl.constexpr,
):
    """Attend in program (tile, group of heads) with QUERIES queries of a slice of more than SHORT over their keys.

    The last tiles run first, because they see the largest number of keys. If FIXED, the bits are those of
    `attend_parts` and `join` with their QUERIES and KEYS.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    index = _slice_of(tile, table, n_slices, QUERIES)
    group = tl.program_id(1)
    table += index * 5
    row, n_queries = tl.load(table), tl.load(table + 1).to(tl.int32)
    query = (tile - (row // QUERIES).to(tl.int32) - index) * QUERIES
    if (n_queries <= SHORT) | (query >= n_queries):
        return
    start, first_key, page = tl.load(table + 2), tl.load(table + 3), tl.load(table + 4)
    origin = first_key // (SPLIT * FAN * FAN) * (SPLIT * FAN * FAN)
    offset, here = (first_key - origin).to(tl.int32), (start - origin).to(tl.int32) + query
    last = here + tl.minimum(QUERIES, n_queries - query) - 1
    rows, width = tl.arange(0, QUERIES * HEADS), tl.arange(0, PADDED)
    mine, member = rows // HEADS, rows % HEADS
    known = (query + mine < n_queries) & (member < HEADS_PER_GROUP)
    at = (row + query + mine) * N_HEADS + group * HEADS_PER_GROUP + member
    query_heads, turning = queries(q, at, known, WIDTH, VALUE, PADDED, TURNING, DOT)
    position = here + mine
    pages += page - offset // PAGE
    keys += group % N_KV * (PAGE * WIDTH)
    values += group % N_KV * (PAGE * WIDTH)
    seen = tl.maximum(offset, here - window + 1)
    if FIXED:
        sums = in_groups(
            query_heads, turning, position, pages, keys, values, seen, last + 1, window, scale,
            N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, SPLIT, FAN,
        )  # fmt: skip
    else:
        sums = _in_three(
            query_heads, turning, position, pages, keys, values, seen, tl.maximum(seen, last - window + 1), here, last,
            window, scale, N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE,
        )  # fmt: skip
    out += at[:, None] * VALUE + width[None, :]
    tl.store(out, mean(sums).to(out.dtype.element_ty), mask=known[:, None] & (width < VALUE)[None, :])
