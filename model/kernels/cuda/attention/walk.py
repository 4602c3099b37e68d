"""Sums over consecutive keys of a slice: see `model.kernels.cuda.attention`.

The ids of the pages of a block are loaded while the block before is computed. Triton's pipeliner then fetches the keys
and values of later blocks; if it had to fetch the ids too, it would need two more stages.
"""

import triton
import triton.language as tl


@triton.jit
def _as(x, dtype: tl.constexpr):
    """Convert x to `dtype`. float8 becomes float32 first: its direct conversion to bfloat16 needs capability 9.0."""
    return x.to(tl.float32).to(dtype) if x.dtype == tl.float8e4nv else x.to(dtype)


@triton.jit
def nothing(ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Return the sums over no keys: (top [ROWS], total [ROWS], sums [ROWS, PADDED])."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    return top, tl.full([ROWS], 0.0, tl.float32), tl.full([ROWS, PADDED], 0.0, tl.float32)


@triton.jit
def fold(one, other):
    """Fold the sums over two ranges of keys into one."""
    top, total, sums = one
    other_top, other_total, other_sums = other
    higher = tl.maximum(top, other_top)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    share, other_share = tl.exp2(top - base), tl.exp2(other_top - base)
    total = tl.fma(other_total, other_share, total * share)
    sums = tl.fma(other_sums, other_share[:, None], sums * share[:, None])
    return higher, total, sums


@triton.jit
def fold_if(due, one, other, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Return (`fold(one, other)`, nothing) if due, else (one, other)."""
    if due:
        one = fold(one, other)
        other = nothing(ROWS, PADDED)
    return one, other


@triton.jit
def fold_up(
    beyond,
    group,
    section,
    every,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
    FAN: tl.constexpr,
):
    """Fold (group, section, every) where a group or a section ends before key `beyond`."""
    section, group = fold_if(beyond % (SPLIT * FAN) == 0, section, group, ROWS, PADDED)
    every, section = fold_if(beyond % (SPLIT * FAN * FAN) == 0, every, section, ROWS, PADDED)
    return group, section, every


@triton.jit
def mean(sums):
    """Return the weighted mean of the values; zeros for a row that sees no key, which is never stored."""
    _, total, weighted = sums
    return weighted / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def page_ids(pages, block, low, high, KEYS: tl.constexpr, PAGE: tl.constexpr):
    """Return the pages [KEYS] of the keys of a block that are in low..high-1."""
    key = block + tl.arange(0, KEYS)
    return tl.load(pages + key // PAGE, mask=(key >= low) & (key < high), other=0)


@triton.jit
def _rows(values, at, held, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Load the vectors [n, PADDED] of WIDTH channels at `at` [n]; zeros, if MASKED, for those that are not `held`."""
    width = tl.arange(0, PADDED)
    at = at[:, None] + width[None, :]
    if MASKED or PADDED != WIDTH:
        rows = tl.load(values + at, mask=held[:, None] & (width < WIDTH)[None, :], other=0.0)
    else:
        rows = tl.load(values + at)
    return rows


@triton.jit
def queries(
    q,
    at,  # [ROWS]: their places
    known,  # [ROWS]
    WIDTH: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    TURNING: tl.constexpr,
    DOT: tl.constexpr,  # format of the factors of products
):
    """Load queries as `add_block` takes them: their first VALUE channels, and the others."""
    first = _rows(q, at * WIDTH, known, VALUE, PADDED, True)
    return first.to(DOT), _rows(q + VALUE, at * WIDTH, known, WIDTH - VALUE, TURNING, True).to(DOT)


@triton.jit
def add_block(
    before,  # sums
    q,  # [ROWS, PADDED]: the first VALUE channels
    turning,  # [ROWS, TURNING]: the others, in latent attention
    position,  # [ROWS], from the origin
    page,  # [KEYS]
    block,  # its first key
    keys,  # of the key head
    values,
    low,
    high,
    window,
    scale,
    N_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add those keys of a block that are in low..high-1. Unless MASKED, every row sees the whole block."""
    top, total, sums = before
    key = block + tl.arange(0, KEYS)
    held = (key >= low) & (key < high)
    at = (page * (N_KV * PAGE) + key % PAGE) * WIDTH
    k = _rows(keys, at, held, VALUE, PADDED, MASKED)  # [KEYS, PADDED]
    scores = tl.dot(q, tl.trans(_as(k, q.dtype)), input_precision="tf32x3")  # [ROWS, KEYS]
    if VALUE == WIDTH:
        v = _rows(values, at, held, VALUE, PADDED, MASKED)
    else:
        v = k
        rest = _rows(keys + VALUE, at, held, WIDTH - VALUE, turning.shape[1], MASKED)
        scores = tl.dot(turning, tl.trans(_as(rest, q.dtype)), scores, input_precision="tf32x3")
    scores *= scale
    if MASKED:
        distance = position[:, None] - key[None, :]
        scores = tl.where((distance >= 0) & (distance < window) & held[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    share = tl.exp2(top - base)
    total = tl.fma(total, share, tl.sum(weights, 1))
    sums = tl.dot(weights.to(q.dtype), _as(v, q.dtype), sums * share[:, None], input_precision="tf32x3")
    return higher, total, sums


@triton.jit
def in_groups(
    q,
    turning,
    position,
    pages,
    keys,
    values,
    low,
    high,
    window,
    scale,
    N_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    FAN: tl.constexpr,
):
    """Add keys low..high-1 in parts, groups and sections. See `add_block` for the arguments."""
    rows: tl.constexpr = q.shape[0]
    part, group = nothing(rows, PADDED), nothing(rows, PADDED)
    section, every = nothing(rows, PADDED), nothing(rows, PADDED)
    first = low // KEYS * KEYS
    page = page_ids(pages, first, low, high, KEYS, PAGE)
    for block in range(first, high, KEYS):
        part = add_block(
            part, q, turning, position, page, block, keys, values, low, high, window, scale,
            N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, True,
        )  # fmt: skip
        beyond = block + KEYS
        page = page_ids(pages, beyond, low, high, KEYS, PAGE)
        group, part = fold_if(beyond % SPLIT == 0, group, part, rows, PADDED)
        group, section, every = fold_up(beyond, group, section, every, rows, PADDED, SPLIT, FAN)
    return fold(every, fold(section, fold(group, part)))


@triton.jit
def in_blocks(
    sums,
    q,
    turning,
    position,
    pages,
    keys,
    values,
    low,
    high,
    window,
    scale,
    N_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add keys low..high-1, a block at a time. Unless MASKED, low and high are multiples of KEYS."""
    first = low // KEYS * KEYS
    page = page_ids(pages, first, low, high, KEYS, PAGE)
    for block in range(first, high, KEYS):
        sums = add_block(
            sums, q, turning, position, page, block, keys, values, low, high, window, scale,
            N_KV, WIDTH, VALUE, PADDED, KEYS, PAGE, MASKED,
        )  # fmt: skip
        page = page_ids(pages, block + KEYS, low, high, KEYS, PAGE)
    return sums
