"""Rotates queries and keys, and stores keys and values in their pages."""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)
"""The greatest value of float8_e4m3fn. Larger values are stored as this one."""


@triton.jit
def _stored(x, dtype: tl.constexpr):
    """Convert x to the format of the cache."""
    if dtype == tl.float8e4nv:
        x = tl.clamp(x, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit(do_not_specialize=["n_rows"], do_not_specialize_on_alignment=["slots"])
def write(
    qkv,  # [T, N_ALL, WIDTH], N_ALL = N_HEADS + 2 N_KV, or N_HEADS + 1 in latent attention
    rotations,  # [T, 2, (WIDTH - STILL) / 2] float32
    q_factors,  # [T] float32, or nothing
    slots,  # [T] int64
    q,  # [T, N_HEADS, WIDTH]
    keys,
    values,
    n_rows,  # T N_ALL
    SCALED: tl.constexpr,
    N_ALL: tl.constexpr,
    N_HEADS: tl.constexpr,
    N_KV: tl.constexpr,
    WIDTH: tl.constexpr,
    STILL: tl.constexpr,  # the first channels, which do not rotate
    STILL_PADDED: tl.constexpr,
    HALF: tl.constexpr,  # (WIDTH - STILL) / 2 rounded up to a power of two
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Rotate q and k, copy q times its factor, store k and v at the token's slot, in program (ROWS heads of tokens).

    Nothing is stored for a slot of -1.
    """
    half: tl.constexpr = (WIDTH - STILL) // 2
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs = tl.arange(0, HALF)[None, :]
    token, head = (rows // N_ALL).to(tl.int64)[:, None], (rows % N_ALL)[:, None]
    real = rows[:, None] < n_rows
    known = real & (pairs < half)  # [ROWS, HALF]
    at = rows.to(tl.int64)[:, None] * WIDTH + STILL + pairs
    first = tl.load(qkv + at, mask=known, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + half, mask=known, other=0.0).to(tl.float32)
    rotates = known & (head < N_HEADS + N_KV)
    at = token * (WIDTH - STILL) + pairs
    cos = tl.load(rotations + at, mask=rotates, other=1.0)
    sin = tl.load(rotations + at + half, mask=rotates, other=0.0)
    first, second = first * cos - second * sin, second * cos + first * sin
    is_query = head < N_HEADS
    if SCALED:
        factor = tl.load(q_factors + token, mask=real & is_query, other=1.0)
        first, second = first * factor, second * factor
    place = (token * N_HEADS + head) * WIDTH
    at = place + STILL + pairs
    tl.store(q + at, first.to(q.dtype.element_ty), mask=known & is_query)
    tl.store(q + at + half, second.to(q.dtype.element_ty), mask=known & is_query)
    first, second = _stored(first, keys.dtype.element_ty), _stored(second, keys.dtype.element_ty)
    slot = tl.load(slots + token, mask=real, other=-1)
    stored, is_key = (head >= N_HEADS) & (slot >= 0), head < N_HEADS + N_KV
    cell = ((slot // PAGE * N_KV + (head - N_HEADS) % N_KV) * PAGE + slot % PAGE) * WIDTH
    at = cell + STILL + pairs
    tl.store(keys + at, first, mask=known & stored & is_key)
    tl.store(keys + at + half, second, mask=known & stored & is_key)
    tl.store(values + at, first, mask=known & stored & (is_key == 0))
    tl.store(values + at + half, second, mask=known & stored & (is_key == 0))
    if STILL:
        width = tl.arange(0, STILL_PADDED)[None, :]
        known = real & (width < STILL)
        x = tl.load(qkv + rows.to(tl.int64)[:, None] * WIDTH + width, mask=known, other=0.0).to(tl.float32)
        if SCALED:
            x = x * factor
        tl.store(q + place + width, x.to(q.dtype.element_ty), mask=known & is_query)
        tl.store(keys + cell + width, _stored(x, keys.dtype.element_ty), mask=known & stored)
