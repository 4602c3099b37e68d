"""The assignment of tokens to experts, computed on the device: the host never waits for it.

(token, choice) pairs are sorted by expert into blocks of `block` slots. A block has pairs of one expert only. The
greatest possible number of blocks is known beforehand: one for each pair, or all full blocks and one more for each
expert.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.cuda import interpreted

_ROWS = tl.constexpr(4 if interpreted() else 64)
"""Rows of logits that are read together."""
COLUMNS = 1024
"""Columns of the weighted sum that one program computes."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Pairs, experts and weights: `slots` [blocks * block] hold pairs (token * choices + choice), or -1 for no pair.

    `experts` [blocks] are the experts of the blocks, -1 after the last block. `shares` [T, choices] float32 are the
    weights of a token's choices.
    """

    slots: Tensor
    experts: Tensor
    shares: Tensor


@triton.jit
def _scores(logits, rows, numbers, n_rows, n_experts):
    """Scores [R, E] float32 of the experts. NaN becomes -3e38; columns beyond n_experts are -inf, which is less."""
    there = (rows < n_rows)[:, None] & (numbers < n_experts)[None, :]
    scores = tl.load(logits + rows[:, None] * n_experts + numbers[None, :], mask=there, other=0.0).to(tl.float32)
    finite = tl.where(scores == scores, tl.minimum(tl.maximum(scores, -3e38), 3e38), -3e38)
    return tl.where((numbers < n_experts)[None, :], finite, float("-inf"))


@triton.jit
def _take(scores, numbers, EXPERTS: tl.constexpr):
    """The greatest score of each row [R], its column as a mask [R, E] (the first of equals), and the other scores."""
    best = tl.max(scores, axis=1)
    which = tl.min(tl.where(scores == best[:, None], numbers[None, :], EXPERTS), axis=1)
    taken = numbers[None, :] == which[:, None]
    return best, taken, tl.where(taken, float("-inf"), scores)


@triton.jit
def _count(logits, n_rows, n_experts, CHOICES: tl.constexpr, EXPERTS: tl.constexpr):
    """The number of pairs of each expert [E]."""
    numbers = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, n_rows, _ROWS):
        rows = first + tl.arange(0, _ROWS)
        scores = _scores(logits, rows, numbers, n_rows, n_experts)
        for _ in tl.static_range(CHOICES):
            _best, taken, scores = _take(scores, numbers, EXPERTS)
            counts += tl.sum((taken & (rows < n_rows)[:, None]).to(tl.int32), axis=0)
    return counts


@triton.jit
def _place(
    logits, shares, slots, begins, n_rows, n_experts, scale, CHOICES: tl.constexpr, EXPERTS: tl.constexpr
):  # fmt: skip
    """Store every pair in the next free slot of its expert, and its share. `begins` [E] are the first slots."""
    numbers = tl.arange(0, EXPERTS)
    for first in range(0, n_rows, _ROWS):
        rows = first + tl.arange(0, _ROWS)
        there = rows < n_rows
        scores = _scores(logits, rows, numbers, n_rows, n_experts)
        top, taken, others = _take(scores, numbers, EXPERTS)
        total = tl.full((_ROWS,), 1.0, tl.float32)
        for _ in tl.static_range(CHOICES - 1):
            best, taken, others = _take(others, numbers, EXPERTS)
            total += tl.exp(best - top)
        for choice in tl.static_range(CHOICES):
            best, taken, scores = _take(scores, numbers, EXPERTS)
            mine = (taken & there[:, None]).to(tl.int32)  # [R, E]
            free = begins[None, :] + tl.cumsum(mine, axis=0) - mine
            slot = tl.sum(mine * free, axis=1)
            pair = rows * CHOICES + choice
            tl.store(slots + slot, pair, mask=there)
            tl.store(shares + pair, tl.exp(best - top) / total * scale, mask=there)
            begins += tl.sum(mine, axis=0)


@triton.jit(do_not_specialize=["n_rows", "n_blocks"])
def _assign(
    logits, shares, slots, experts, load, n_rows, n_experts, n_blocks, scale,
    CHOICES: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Assign all pairs; a single program counts them, adds the counts to `load`, then places them."""
    counts = _count(logits, n_rows, n_experts, CHOICES, EXPERTS)
    mine = load + tl.arange(0, EXPERTS)
    known = tl.arange(0, EXPERTS) < n_experts
    tl.store(mine, tl.load(mine, mask=known, other=0) + counts, mask=known)
    blocks = (counts + BLOCK - 1) // BLOCK
    ends = tl.cumsum(blocks, axis=0)
    begins = (ends - blocks) * BLOCK
    left = (begins + counts)[:, None] + tl.arange(0, BLOCK)[None, :]  # free slots of the last blocks
    tl.store(slots + left, tl.full((EXPERTS, BLOCK), -1, tl.int32), mask=left < (ends * BLOCK)[:, None])
    for first in range(0, n_blocks, _ROWS):
        block = first + tl.arange(0, _ROWS)
        owner = tl.sum((ends[None, :] <= block[:, None]).to(tl.int32), axis=1)
        tl.store(experts + block, tl.where(owner < n_experts, owner, -1), mask=block < n_blocks)
    _place(logits, shares, slots, begins, n_rows, n_experts, scale, CHOICES, EXPERTS)


@triton.jit
def _join(y, shares, onto, out, dim, CHOICES: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (token, columns): the sum of its pairs' rows of y times their shares, in order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < dim
    total = tl.zeros((COLUMNS,), tl.float32)
    for choice in tl.static_range(CHOICES):
        pair = row * CHOICES + choice
        total += tl.load(y + pair * dim + columns, mask=there, other=0.0).to(tl.float32) * tl.load(shares + pair)
    if onto is not None:
        total += tl.load(onto + row * dim + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * dim + columns, total.to(out.dtype.element_ty), mask=there)


def assign(logits: Tensor, choices: int, block: int, load: Tensor, scale: float = 1.0) -> Assignment:
    """The assignment for the gate's logits [T, n_experts]; `model.network.moe.route` is the same in PyTorch.

    The shares are multiplied by `scale`. `load` [n_experts] int64 counts the pairs of each expert.
    """
    n_rows, n_experts = logits.shape
    n_pairs = n_rows * choices
    n_blocks = min(n_pairs, n_pairs // block + n_experts)
    slots, experts = (logits.new_empty(n, dtype=torch.int32) for n in (n_blocks * block, n_blocks))
    shares = logits.new_empty(n_rows, choices, dtype=torch.float32)
    sizes = choices, triton.next_power_of_2(n_experts), block
    given = logits.contiguous(), shares, slots, experts, load
    _assign[(1,)](*given, n_rows, n_experts, n_blocks, scale, *sizes)
    return Assignment(slots, experts, shares)


def join(y: Tensor, shares: Tensor, onto: Tensor | None) -> Tensor:
    """y [T * choices, dim] of the pairs -> [T, dim] of the tokens; with `onto` it is added to that in place."""
    n_rows, choices = shares.shape
    out = y.new_empty(n_rows, y.shape[1]) if onto is None else onto
    _join[(n_rows, triton.cdiv(y.shape[1], COLUMNS))](y, shares, onto, out, y.shape[1], choices, COLUMNS)
    return out
