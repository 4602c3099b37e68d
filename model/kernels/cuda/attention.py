"""Attention over pages of keys and values.

The keys of a layer are [n_pages, N_KV, PAGE, WIDTH], and so are its values. A slice is a row of `PoolInputs.table`:
`row`, `n_queries`, `start`, `first_key`, `page`. Its origin is the greatest multiple of SPLIT that is not greater than
`first_key`. Keys are counted from the origin: 32 bits then suffice, and blocks of KEYS and parts of SPLIT keys begin at
fixed positions of the sequence. A tile has a row for each of QUERIES queries and HEADS heads of a group, of which
HEADS_PER_KV are real.

The sums over a part of the keys are: `top`, the largest score; `total`, the sum of the weights 2^(score - top); and
`sums` [WIDTH], the sum of the weighted values. A block that a row does not see changes none of its bits, and parts are
folded in order. A row's bits therefore depend on its own keys only. Launch with enable_fp_fusion=False: the compiler
might fuse multiplications and additions differently in each kernel. Float32 is multiplied in three products of tf32,
which lose almost no accuracy and run on tensor cores.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)
"""The greatest value of float8_e4m3fn. Larger values are stored as this one."""


@triton.jit(do_not_specialize=["n_rows"], do_not_specialize_on_alignment=["slots"])
def write(
    qkv,  # [T, N_ALL, WIDTH], N_ALL = N_HEADS + 2 N_KV
    rotations,  # [T, 2, WIDTH / 2] float32, or nothing
    q_factors,  # [T] float32, or nothing
    slots,  # [T] int64
    q,  # [T, N_HEADS, WIDTH]
    keys,
    values,
    n_rows,  # T N_ALL
    ROTATED: tl.constexpr,
    SCALED: tl.constexpr,
    N_HEADS: tl.constexpr,
    N_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,  # WIDTH / 2 rounded up to a power of two
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Program (ROWS heads of tokens): rotate q and k, copy q times its factor, store k and v at the token's slot.

    Nothing is stored for a slot of -1.
    """
    half: tl.constexpr = WIDTH // 2
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs = tl.arange(0, HALF)[None, :]
    token, head = (rows // (N_HEADS + 2 * N_KV)).to(tl.int64)[:, None], (rows % (N_HEADS + 2 * N_KV))[:, None]
    known = (rows[:, None] < n_rows) & (pairs < half)  # [ROWS, HALF]
    at = rows.to(tl.int64)[:, None] * WIDTH + pairs
    first = tl.load(qkv + at, mask=known, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + half, mask=known, other=0.0).to(tl.float32)
    if ROTATED:
        rotates = known & (head < N_HEADS + N_KV)
        cos = tl.load(rotations + token * WIDTH + pairs, mask=rotates, other=1.0)
        sin = tl.load(rotations + token * WIDTH + half + pairs, mask=rotates, other=0.0)
        rotated = first * cos - second * sin
        second = second * cos + first * sin
        first = rotated
    is_query = known & (head < N_HEADS)
    if SCALED:
        factor = tl.load(q_factors + token, mask=(rows[:, None] < n_rows) & (head < N_HEADS), other=1.0)
        first, second = first * factor, second * factor
    at = (token * N_HEADS + head) * WIDTH + pairs
    tl.store(q + at, first.to(q.dtype.element_ty), mask=is_query)
    tl.store(q + at + half, second.to(q.dtype.element_ty), mask=is_query)
    if keys.dtype.element_ty == tl.float8e4nv:
        first = tl.clamp(first, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        second = tl.clamp(second, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    first, second = first.to(keys.dtype.element_ty), second.to(keys.dtype.element_ty)
    slot = tl.load(slots + token, mask=rows[:, None] < n_rows, other=-1)
    stored, is_key = known & (head >= N_HEADS) & (slot >= 0), head < N_HEADS + N_KV
    at = ((slot // PAGE * N_KV + (head - N_HEADS) % N_KV) * PAGE + slot % PAGE) * WIDTH + pairs
    tl.store(keys + at, first, mask=stored & is_key)
    tl.store(keys + at + half, second, mask=stored & is_key)
    tl.store(values + at, first, mask=stored & (is_key == 0))
    tl.store(values + at + half, second, mask=stored & (is_key == 0))


@triton.jit
def _as(x, dtype: tl.constexpr):
    """x in `dtype`. float8 becomes float32 first, because its direct conversion to bfloat16 needs capability 9.0."""
    return x.to(tl.float32).to(dtype) if x.dtype == tl.float8e4nv else x.to(dtype)


@triton.jit
def _walk(
    top,  # [ROWS]
    total,  # [ROWS]
    sums,  # [ROWS, PADDED]
    q,  # [ROWS, PADDED]
    position,  # [ROWS], from the origin
    pages,  # of the origin's block
    keys,  # of the key head
    values,
    low,
    high,
    window,
    scale,
    N_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The sums with keys low..high-1 added, a block of KEYS at a time.

    Unless MASKED, low and high are multiples of KEYS and every row sees all the keys.
    """
    width = tl.arange(0, PADDED)
    for block in range(low // KEYS * KEYS, high, KEYS):
        key = block + tl.arange(0, KEYS)
        held = (key >= low) & (key < high)
        if MASKED:
            page = tl.load(pages + key // PAGE, mask=held, other=0)
        else:
            page = tl.load(pages + key // PAGE)
        at = (page * (N_KV * PAGE) + key % PAGE)[:, None] * WIDTH + width[None, :]  # [KEYS, PADDED]
        if MASKED or PADDED != WIDTH:
            k = tl.load(keys + at, mask=held[:, None] & (width < WIDTH)[None, :], other=0.0)
        else:
            k = tl.load(keys + at)
        scores = tl.dot(q, tl.trans(_as(k, q.dtype)), input_precision="tf32x3") * scale  # [ROWS, KEYS]
        if MASKED:
            distance = position[:, None] - key[None, :]
            scores = tl.where((distance >= 0) & (distance < window) & held[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        share = tl.exp2(top - base)
        if MASKED or PADDED != WIDTH:
            v = tl.load(values + at, mask=held[:, None] & (width < WIDTH)[None, :], other=0.0)
        else:
            v = tl.load(values + at)
        total = tl.fma(total, share, tl.sum(weights, 1))
        sums = tl.dot(weights.to(q.dtype), _as(v, q.dtype), sums * share[:, None], input_precision="tf32x3")
        top = higher
    return top, total, sums


@triton.jit
def _fold(top, total, sums, part_top, part_total, part_sums):
    """The sums over two parts of the keys, from the sums over each of them."""
    higher = tl.maximum(top, part_top)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    share, part_share = tl.exp2(top - base), tl.exp2(part_top - base)
    total = tl.fma(part_total, part_share, total * share)
    sums = tl.fma(part_sums, part_share[:, None], sums * share[:, None])
    return higher, total, sums


@triton.jit
def _mean(total, sums):
    """The weighted mean of the values; zeros for a row that sees no key, which is never stored."""
    return sums / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["n_tiles", "max_queries"], do_not_specialize_on_alignment=["pages", "table"])
def attend_parts(
    q,  # [T, N_KV * HEADS_PER_KV, WIDTH]
    keys,
    values,
    pages,
    table,
    tops,  # [n_parts, max_queries, N_KV * HEADS_PER_KV, 2] float32: top and total
    parts,  # [n_parts, max_queries, N_KV * HEADS_PER_KV, WIDTH] float32
    n_tiles,
    max_queries,
    window,
    scale,
    SHORT: tl.constexpr,
    N_KV: tl.constexpr,
    HEADS_PER_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    DOT: tl.constexpr,  # format of the factors of products
):
    """Program (slice and tile, key head, z): sums of every part z, z + n, .. of a slice of up to SHORT queries.

    The parts of slice i are numbered from `page / (SPLIT / PAGE) + 2 i`, which leaves numbers for those before it.
    """
    index, query = tl.program_id(0) // n_tiles, tl.program_id(0) % n_tiles * QUERIES
    head = tl.program_id(1)
    table += index * 5
    n_queries = tl.load(table + 1).to(tl.int32)
    if (n_queries > SHORT) | (query >= n_queries):
        return
    row, start, first_key, page = tl.load(table), tl.load(table + 2), tl.load(table + 3), tl.load(table + 4)
    origin = first_key // SPLIT * SPLIT
    offset, here = (first_key - origin).to(tl.int32), (start - origin).to(tl.int32)
    n_parts = (here + n_queries - 1) // SPLIT + 1
    rows, width = tl.arange(0, QUERIES * HEADS), tl.arange(0, PADDED)
    mine, member = query + rows // HEADS, rows % HEADS
    known = (mine < n_queries) & (member < HEADS_PER_KV)
    visible = known[:, None] & (width < WIDTH)[None, :]
    heads = head * HEADS_PER_KV + member
    at = ((row + mine) * (N_KV * HEADS_PER_KV) + heads)[:, None] * WIDTH + width[None, :]
    query_heads = tl.load(q + at, mask=visible, other=0.0).to(DOT)  # [ROWS, PADDED]
    seen = tl.maximum(offset, here + query - window + 1)  # the first key that the first query sees
    beyond = here + tl.minimum(query + QUERIES, n_queries)
    pages += page - offset // PAGE
    keys += head * (PAGE * WIDTH)
    values += head * (PAGE * WIDTH)
    first_part = page // (SPLIT // PAGE) + 2 * index
    for part in range(tl.program_id(2), n_parts, tl.num_programs(2)):
        low, high = tl.maximum(part * SPLIT, seen), tl.minimum(part * SPLIT + SPLIT, beyond)
        top, total, sums = _walk(
            tl.full([QUERIES * HEADS], float("-inf"), tl.float32),
            tl.full([QUERIES * HEADS], 0.0, tl.float32),
            tl.full([QUERIES * HEADS, PADDED], 0.0, tl.float32),
            query_heads, here + mine, pages, keys, values, low, high, window, scale,
            N_KV, WIDTH, PADDED, KEYS, PAGE, True,
        )  # fmt: skip
        place = ((first_part + part) * max_queries + mine) * (N_KV * HEADS_PER_KV) + heads
        tl.store(tops + place * 2, top, mask=known)
        tl.store(tops + place * 2 + 1, total, mask=known)
        tl.store(parts + place[:, None] * WIDTH + width[None, :], sums, mask=visible)


@triton.jit(do_not_specialize=["max_queries"], do_not_specialize_on_alignment=["table"])
def join(
    tops,
    parts,
    table,
    out,  # [T, N_HEADS, WIDTH]
    max_queries,
    SHORT: tl.constexpr,
    N_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Program (slice and query, block of heads): the sums of `attend_parts`, folded in order."""
    index, query = tl.program_id(0) // max_queries, tl.program_id(0) % max_queries
    table += index * 5
    n_queries = tl.load(table + 1).to(tl.int32)
    if (n_queries > SHORT) | (query >= n_queries):
        return
    row, start, first_key, page = tl.load(table), tl.load(table + 2), tl.load(table + 3), tl.load(table + 4)
    n_parts = ((start - first_key // SPLIT * SPLIT).to(tl.int32) + n_queries - 1) // SPLIT + 1
    heads, width = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, PADDED)
    known = (heads < N_HEADS)[:, None] & (width < WIDTH)[None, :]
    first = page // (SPLIT // PAGE) + 2 * index
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.full([HEADS], 0.0, tl.float32)
    sums = tl.full([HEADS, PADDED], 0.0, tl.float32)
    for part in tl.range(0, n_parts, loop_unroll_factor=4):
        place = ((first + part) * max_queries + query) * N_HEADS + heads
        top, total, sums = _fold(
            top,
            total,
            sums,
            tl.load(tops + place * 2, mask=heads < N_HEADS, other=float("-inf")),
            tl.load(tops + place * 2 + 1, mask=heads < N_HEADS, other=0.0),
            tl.load(parts + place[:, None] * WIDTH + width[None, :], mask=known, other=0.0),
        )
    at = ((row + query) * N_HEADS + heads)[:, None] * WIDTH + width[None, :]
    tl.store(out + at, _mean(total, sums).to(out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["n_slices"], do_not_specialize_on_alignment=["pages", "table"])
def attend_tiles(
    q,  # [T, N_KV * HEADS_PER_KV, WIDTH]
    keys,
    values,
    pages,
    table,
    out,  # [T, N_KV * HEADS_PER_KV, WIDTH]
    n_slices,
    window,
    scale,
    SHORT: tl.constexpr,
    FIXED: tl.constexpr,
    N_KV: tl.constexpr,
    HEADS_PER_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    DOT: tl.constexpr,
):
    """Program (tile, key head): QUERIES queries of a slice of more than SHORT, over all the keys they see.

    Tiles of slice i are numbered from `row / QUERIES + i`, which leaves numbers for those before it. The last tiles
    run first, because they see the largest number of keys. If FIXED, the bits are those of `attend_parts` and `join`
    with their QUERIES and KEYS.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    index, beyond = 0, n_slices
    while index + 1 < beyond:
        middle = (index + beyond) // 2
        reached = tl.load(table + middle * 5) // QUERIES + middle <= tile
        index = tl.where(reached, middle, index)
        beyond = tl.where(reached, beyond, middle)
    head = tl.program_id(1)
    table += index * 5
    row, n_queries = tl.load(table), tl.load(table + 1).to(tl.int32)
    query = (tile - (row // QUERIES).to(tl.int32) - index) * QUERIES
    if (n_queries <= SHORT) | (query >= n_queries):
        return
    start, first_key, page = tl.load(table + 2), tl.load(table + 3), tl.load(table + 4)
    origin = first_key // SPLIT * SPLIT
    offset, here = (first_key - origin).to(tl.int32), (start - origin).to(tl.int32) + query
    last = here + tl.minimum(QUERIES, n_queries - query) - 1
    rows, width = tl.arange(0, QUERIES * HEADS), tl.arange(0, PADDED)
    mine, member = rows // HEADS, rows % HEADS
    known = ((query + mine < n_queries) & (member < HEADS_PER_KV))[:, None] & (width < WIDTH)[None, :]
    at = ((row + query + mine) * (N_KV * HEADS_PER_KV) + head * HEADS_PER_KV + member)[:, None] * WIDTH + width[None, :]
    query_heads = tl.load(q + at, mask=known, other=0.0).to(DOT)  # [ROWS, PADDED]
    position = here + mine
    pages += page - offset // PAGE
    keys += head * (PAGE * WIDTH)
    values += head * (PAGE * WIDTH)
    seen = tl.maximum(offset, here - window + 1)
    top = tl.full([QUERIES * HEADS], float("-inf"), tl.float32)
    total = tl.full([QUERIES * HEADS], 0.0, tl.float32)
    sums = tl.full([QUERIES * HEADS, PADDED], 0.0, tl.float32)
    if FIXED:
        for part in range(seen // SPLIT, last // SPLIT + 1):
            low, high = tl.maximum(part * SPLIT, seen), tl.minimum(part * SPLIT + SPLIT, last + 1)
            part_top, part_total, part_sums = _walk(
                tl.full([QUERIES * HEADS], float("-inf"), tl.float32),
                tl.full([QUERIES * HEADS], 0.0, tl.float32),
                tl.full([QUERIES * HEADS, PADDED], 0.0, tl.float32),
                query_heads, position, pages, keys, values, low, high, window, scale,
                N_KV, WIDTH, PADDED, KEYS, PAGE, True,
            )  # fmt: skip
            top, total, sums = _fold(top, total, sums, part_top, part_total, part_sums)
    else:
        common = tl.maximum(seen, last - window + 1)  # from here up to `here` every query sees every key
        left = (common + KEYS - 1) // KEYS * KEYS
        right = tl.maximum(left, (here + 1) // KEYS * KEYS)
        top, total, sums = _walk(
            top, total, sums, query_heads, position, pages, keys, values, seen, tl.minimum(left, last + 1), window,
            scale, N_KV, WIDTH, PADDED, KEYS, PAGE, True,
        )  # fmt: skip
        top, total, sums = _walk(
            top, total, sums, query_heads, position, pages, keys, values, left, right, window,
            scale, N_KV, WIDTH, PADDED, KEYS, PAGE, False,
        )  # fmt: skip
        top, total, sums = _walk(
            top, total, sums, query_heads, position, pages, keys, values, right, last + 1, window,
            scale, N_KV, WIDTH, PADDED, KEYS, PAGE, True,
        )  # fmt: skip
    tl.store(out + at, _mean(total, sums).to(out.dtype.element_ty), mask=known)
