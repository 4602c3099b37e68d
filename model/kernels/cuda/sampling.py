"""Draws one token from each row of logits as kernels/cpu/sample.c does: without a sort, all rows in each launch.

A token's key has the bits of its weight, then those of its id, inverted: equal weights are in the order of ids, and no
two keys of a row are equal. top_k and top_p keep the keys from a limit on. Each step of a search finds a digit of it: a
launch adds up, for each next digit, the number or weights of the tokens whose digits before agree with the limit.
Maxima and sums of integers are the same in any order: neither other rows nor the number of programs change a token.
"""

from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.machine.transfers import send
from model.sampling_params import DRAWING

ROWS, BLOCK, PROGRAMS, CHOICES = 1, 1024, 512, 32
"""Rows of a program, columns that it loads at once, about how many programs share the columns of all rows, and rows of
a program that only chooses."""
MOST_TOKENS, DIGITS, RECORD = 2**20, 5, 3 + 2**10
"""A key's digits are three of a weight up to 1, and two of an id. A step of a search keeps RECORD integers for a row:
the limit of the search before, the digits found, the number or weight still to find, and a sum for each next digit."""
_BITS, _VALUES, _DIGITS, _RECORD = tl.constexpr(10), tl.constexpr(2**10), tl.constexpr(DIGITS), tl.constexpr(RECORD)
_IDS = tl.constexpr(MOST_TOKENS - 1)


@triton.jit
def _units(weights):
    """Convert weights from 0 to 1 to units of 2^-41, rounded down; see `fixed` in sample.c."""
    return (weights * 2199023255552.0).to(tl.int64)


@triton.jit
def _keys(values, ids):
    """Return keys [R, B]: greater for greater values, which are not negative, and among equals for lower ids [B]."""
    return (values.to(tl.int32, bitcast=True).to(tl.int64) << 2 * _BITS) | (ids ^ _IDS)[None, :]


@triton.jit
def _uniforms(start, step, ids):
    """Return uniforms [R, B] strictly between 0 and 1, as `noise` in noise.py."""
    x = (start[:, None] + step[:, None] * ids[None, :]).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return (((x ^ (x >> 16)) >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def _after(kept, there, share, step, n_counted):
    """Return the first three integers of a step, of RECORD, after it. Before the first step all are 0.

    Nothing is to find if all tokens stay that have the weight at the limit.
    """
    at, there, level, digits = kept + 1 + step * _RECORD, there & (step >= 0), step % _DIGITS, tl.arange(0, _VALUES)
    floor, found = tl.load(at, mask=there, other=0), tl.load(at + 1, mask=there, other=0)
    needed = tl.load(at + 2, mask=there, other=0)
    sums = tl.load((at + 3)[:, None] + digits[None, :], mask=(needed > 0)[:, None], other=0)
    total, reached = tl.sum(sums, axis=1), tl.cumsum(sums, axis=1, reverse=True)
    part = tl.ceil(total.to(tl.float64) * share.to(tl.float64)).to(tl.int64)
    goal = tl.where((level == 0) & (step >= n_counted), tl.minimum(part, total), needed)
    digit = tl.maximum(tl.sum((reached >= goal[:, None]).to(tl.int32), axis=1) - 1, 0)
    here = digits[None, :] == digit[:, None]
    amount = tl.sum(tl.where(here, sums, 0), axis=1)
    left = goal + amount - tl.sum(tl.where(here, reached, 0), axis=1)
    longer = found | (digit.to(tl.int64) << (_BITS * (_DIGITS - 1 - level)))
    one = _units((longer >> 2 * _BITS).to(tl.int32).to(tl.float32, bitcast=True))
    all_stay = (level == 2) & (left + tl.where(step < n_counted, 1, one) > amount)
    return floor, tl.where(needed > 0, longer, found), tl.where((needed > 0) & (all_stay == 0), left, 0)


@triton.jit(do_not_specialize=["n_rows", "width", "step", "n_counted"])
def _pass(
    logits, tops, reals, integers, scratch, n_rows, n_tokens, stride, width, columns, step, n_counted,
    RACE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do a step of a search, after the last the race for the key of the first clock, in program (rows, columns).

    The first `n_counted` steps are those of top_k, the others those of top_p.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    top = tl.load(tops + rows, mask=rows < n_rows, other=float("inf"))
    temperature = tl.load(reals + rows * 6, mask=tl.abs(top) < float("inf"), other=0.0)
    drawn = temperature > 0
    least = tl.load(reals + rows * 6 + 1, mask=drawn, other=0.0)
    share = tl.load(reals + rows * 6 + 2, mask=drawn, other=1.0)
    kept, level, counted = scratch + rows * width, step % _DIGITS, step < n_counted
    floor, found, needed = _after(kept, drawn, share, step - 1, n_counted)
    if level == 0:  # a search begins. How many units top_p wants is a share of what this step adds up
        k = tl.load(integers + rows * 6 + 3, mask=drawn, other=0)
        floor, found = tl.maximum(floor, found), tl.zeros_like(found)
        needed = tl.where(RACE, drawn, tl.where(counted, tl.where(k < n_tokens, k, 0), share < 1)).to(tl.int64)
    at, shift = kept + 1 + step * _RECORD, _BITS * (_DIGITS - 1 - level)
    if (tl.program_id(1) == 0) & (not RACE):
        tl.store(at, floor, mask=drawn)
        tl.store(at + 1, found, mask=drawn)
        tl.store(at + 2, needed, mask=drawn)
    # All weights below `small` together are less than the part that may be hidden: only their sum is needed.
    small = tl.where((level > 0) | counted, 0.0, 0.5 * (1 - share) / n_tokens)
    rest, begin = tl.zeros((ROWS, BLOCK), tl.int64), tl.program_id(1) * columns
    for first in range(begin, tl.minimum(begin + columns, n_tokens), BLOCK):
        ids = first + tl.arange(0, BLOCK)
        near = (level < _DIGITS - 1) | (((ids ^ _IDS)[None, :] ^ found[:, None]) >> _BITS & (_VALUES - 1) == 0)
        inside = (needed > 0)[:, None] & (ids < n_tokens)[None, :] & near
        x = tl.load(logits + (rows * stride)[:, None] + ids[None, :], mask=inside, other=float("-inf"))
        x = tl.div_rn(x - tl.where(drawn, top, 0.0)[:, None], tl.broadcast_to(temperature[:, None], x.shape))
        weights = tl.where(inside & (tl.exp(x) >= least[:, None]), tl.exp(x), 0.0)
        keys = _keys(weights, ids)
        weights = tl.where(keys >= floor[:, None], weights, 0.0)
        if RACE:
            start = tl.load(integers + rows * 6 + 4, mask=drawn, other=0)
            odd = tl.load(integers + rows * 6 + 5, mask=drawn, other=0)
            rest = tl.maximum(rest, _keys(weights / -tl.log(_uniforms(start, odd, ids)), ids))
        else:
            amounts = tl.where(counted, (weights > 0).to(tl.int64), _units(weights))
            agree = (amounts > 0) & ((keys ^ found[:, None]) >> (shift + _BITS) == 0)
            few, sums = agree & (weights < small[:, None]), (at + 3)[:, None] + (keys >> shift & (_VALUES - 1))
            tl.atomic_add(sums, amounts, mask=agree & (few == 0), sem="relaxed")
            rest += tl.where(few, amounts, 0)
    if RACE:
        tl.atomic_max(kept, tl.max(rest, axis=1), mask=drawn, sem="relaxed")
    else:
        tl.atomic_add(at + 3, tl.sum(rest, axis=1), mask=drawn & (level == 0), sem="relaxed")


@triton.jit(do_not_specialize=["n_rows", "width"])
def _choose(
    logits, tops, tokens, scratch, n_rows, stride, width,
    NO_TOKEN: tl.constexpr, NOT_FINITE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Choose in program (rows): `tokens` are the greatest logits' places before, chosen tokens or codes after."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = rows < n_rows
    top, key = tl.load(tops + rows, mask=there), tl.load(scratch + rows * width, mask=there)
    rate = (key >> 2 * _BITS).to(tl.int32).to(tl.float32, bitcast=True)
    token = tl.where(rate > 0, ~key & _IDS, tl.load(tokens + rows, mask=there))
    tl.store(logits + rows * stride + token, tl.where(rate > 0, rate, top), mask=there)
    token = tl.where(top == float("-inf"), NO_TOKEN, token)
    tl.store(tokens + rows, tl.where(top < float("inf"), token, NOT_FINITE), mask=there)


def row_type() -> np.dtype[np.void]:
    """Return the record that says how to sample from a row: see `params` of sample.h."""
    return np.dtype([*DRAWING, ("start", "i4"), ("step", "i4")])


def sample(logits: Tensor, rows: NDArray[np.void]) -> Tensor:
    """Sample tokens [N], NO_TOKEN or NOT_FINITE, from logits [N, n] float32: in greedy rows the first of the greatest.

    A sampled token's logit becomes what the race compares.
    """
    (n_rows, n_tokens), stride, drawn = logits.shape, logits.stride(0), rows["temperature"] > 0
    tops, tokens = logits.max(dim=-1)
    n_counted = DIGITS * bool((drawn & (rows["top_k"] > 0)).any())
    n_steps = n_counted + DIGITS * bool((drawn & (rows["top_p"] < 1)).any())
    width = 1 + n_steps * RECORD
    scratch = torch.zeros(n_rows, width, dtype=torch.int64, device=logits.device)
    if drawn.any():
        integers = send(torch.from_numpy(rows.view(np.int32).reshape(n_rows, -1)), logits.device)  # [N, 6]
        blocks, groups = triton.cdiv(n_tokens, BLOCK), triton.cdiv(n_rows, ROWS)
        columns = triton.cdiv(blocks, max(1, PROGRAMS // groups)) * BLOCK
        tensors = logits, tops, integers.view(torch.float32), integers, scratch
        sizes = n_rows, n_tokens, stride, width, columns
        launch = partial(_pass[groups, triton.cdiv(n_tokens, columns)], *tensors, *sizes)
        for step in range(n_steps + 1):
            launch(step, n_counted, step == n_steps, ROWS, BLOCK)
    constants = NO_TOKEN, NOT_FINITE, CHOICES
    grid = (triton.cdiv(n_rows, CHOICES),)
    _choose[grid](logits, tops, tokens, scratch, n_rows, stride, width, *constants, num_warps=1)
    return tokens
