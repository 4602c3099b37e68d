"""Rotates queries and keys, and stores keys and values in their pages."""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)
"""The greatest value of float8_e4m3fn. Larger values are stored as this one."""


@triton.jit(do_not_specialize=["n_rows"], do_not_specialize_on_alignment=["slots"])
def write(
    qkv,  # [T, N_ALL, WIDTH], N_ALL = N_HEADS + 2 N_KV
    rotations,  # [T, 2, WIDTH / 2] float32
    q_factors,  # [T] float32, or nothing
    slots,  # [T] int64
    q,  # [T, N_HEADS, WIDTH]
    keys,
    values,
    n_rows,  # T N_ALL
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
    rotates = known & (head < N_HEADS + N_KV)
    cos = tl.load(rotations + token * WIDTH + pairs, mask=rotates, other=1.0)
    sin = tl.load(rotations + token * WIDTH + half + pairs, mask=rotates, other=0.0)
    first, second = first * cos - second * sin, second * cos + first * sin
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
