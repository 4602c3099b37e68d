"""The assignment of tokens to experts, computed on the device: the host never waits for it.

One kernel chooses, a program for each ROWS tokens, and counts its pairs of each expert. The other adds up the counts of
all programs and places the pairs.

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

ROWS = 4 if interpreted() else 32
"""Rows of logits of one program."""
_COUNTS = tl.constexpr(16)
"""Programs whose counts are read together."""
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
    """Load scores [R, E] float32 of experts. NaN becomes -3e38; columns beyond n_experts are -inf, which is less."""
    there = (rows < n_rows)[:, None] & (numbers < n_experts)[None, :]
    scores = tl.load(logits + rows[:, None] * n_experts + numbers[None, :], mask=there, other=0.0).to(tl.float32)
    finite = tl.where(scores == scores, tl.minimum(tl.maximum(scores, -3e38), 3e38), -3e38)
    return tl.where((numbers < n_experts)[None, :], finite, float("-inf"))


@triton.jit
def _take(scores, numbers, EXPERTS: tl.constexpr):
    """Take each row's greatest score [R]; return it, its column (the first of equals), its mask [R, E], the others."""
    best = tl.max(scores, axis=1)
    which = tl.min(tl.where(scores == best[:, None], numbers[None, :], EXPERTS), axis=1)
    taken = numbers[None, :] == which[:, None]
    return best, which, taken, tl.where(taken, float("-inf"), scores)


@triton.jit(do_not_specialize=["n_rows"])
def _choose(
    logits, shares, chosen, counts, n_rows, n_experts, scale,
    CHOICES: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Choose in program (rows) the experts of each row's pairs; store their shares and the pairs of each expert."""
    numbers = tl.arange(0, EXPERTS)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < n_rows
    scores = _scores(logits, rows, numbers, n_rows, n_experts)
    top = tl.max(scores, axis=1)
    total = tl.zeros((ROWS,), tl.float32)
    mine = tl.zeros((EXPERTS,), tl.int32)
    for choice in tl.static_range(CHOICES):
        best, which, taken, scores = _take(scores, numbers, EXPERTS)
        total += tl.exp(best - top)
        mine += tl.sum((taken & there[:, None]).to(tl.int32), axis=0)
        tl.store(chosen + rows * CHOICES + choice, which, mask=there)
        tl.store(shares + rows * CHOICES + choice, tl.exp(best - top), mask=there)
    tl.store(counts + tl.program_id(0) * EXPERTS + numbers, mine)
    tl.debug_barrier()  # a share may be another thread's
    for choice in tl.static_range(CHOICES):
        at = shares + rows * CHOICES + choice
        tl.store(at, tl.load(at, mask=there, other=0.0) / total * scale, mask=there)


@triton.jit
def _all_counts(counts, n_programs, EXPERTS: tl.constexpr):
    """Count the pairs of each expert [E], and those of them that programs before this one have."""
    numbers = tl.arange(0, EXPERTS)
    total, before = tl.zeros((EXPERTS,), tl.int32), tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, n_programs, _COUNTS):
        program = first + tl.arange(0, _COUNTS)
        at = counts + program[:, None] * EXPERTS + numbers[None, :]
        found = tl.load(at, mask=(program < n_programs)[:, None], other=0)
        total += tl.sum(found, axis=0)
        before += tl.sum(tl.where((program < tl.program_id(0))[:, None], found, 0), axis=0)
    return total, before


@triton.jit(do_not_specialize=["n_rows", "n_blocks"])
def _place(
    chosen, counts, slots, experts, n_rows, n_experts, n_blocks,
    CHOICES: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store every pair of program (rows) in the next free slot of its expert."""
    numbers = tl.arange(0, EXPERTS)
    total, before = _all_counts(counts, tl.num_programs(0), EXPERTS)
    blocks = (total + BLOCK - 1) // BLOCK
    ends = tl.cumsum(blocks, axis=0)
    begins = (ends - blocks) * BLOCK
    if tl.program_id(0) == 0:
        left = (begins + total)[:, None] + tl.arange(0, BLOCK)[None, :]  # free slots of the last blocks
        tl.store(slots + left, tl.full((EXPERTS, BLOCK), -1, tl.int32), mask=left < (ends * BLOCK)[:, None])
    for first in range(tl.program_id(0) * _COUNTS, n_blocks, tl.num_programs(0) * _COUNTS):
        block = first + tl.arange(0, _COUNTS)
        owner = tl.sum((ends[None, :] <= block[:, None]).to(tl.int32), axis=1)
        tl.store(experts + block, tl.where(owner < n_experts, owner, -1), mask=block < n_blocks)
    free = begins + before
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    for choice in range(CHOICES):
        pair = rows * CHOICES + choice
        which = tl.load(chosen + pair, mask=rows < n_rows, other=-1)
        mine = (which[:, None] == numbers[None, :]).to(tl.int32)  # [R, E]
        slot = tl.sum(mine * (free[None, :] + tl.cumsum(mine, axis=0) - mine), axis=1)
        tl.store(slots + slot, pair, mask=rows < n_rows)
        free += tl.sum(mine, axis=0)


@triton.jit
def _join(y, shares, onto, out, dim, CHOICES: tl.constexpr, COLUMNS: tl.constexpr):
    """Add its pairs' rows of y times their shares, in order, in program (token, columns)."""
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


def assign(logits: Tensor, choices: int, block: int, scale: float = 1.0) -> Assignment:
    """Assign experts by the gate's logits [T, n_experts]; `model.network.moe.route` is the same in PyTorch.

    The shares are multiplied by `scale`.
    """
    n_rows, n_experts = logits.shape
    n_pairs, n_programs = n_rows * choices, triton.cdiv(n_rows, ROWS)
    n_blocks = min(n_pairs, n_pairs // block + n_experts)
    sizes = choices, triton.next_power_of_2(n_experts)
    lengths = n_blocks * block, n_blocks, n_pairs, n_programs * sizes[1]
    slots, experts, chosen, counts = (logits.new_empty(n, dtype=torch.int32) for n in lengths)
    shares = logits.new_empty(n_rows, choices, dtype=torch.float32)
    _choose[(n_programs,)](logits.contiguous(), shares, chosen, counts, n_rows, n_experts, scale, *sizes, ROWS)
    _place[(n_programs,)](chosen, counts, slots, experts, n_rows, n_experts, n_blocks, *sizes, block, ROWS)
    return Assignment(slots, experts, shares)


def join(y: Tensor, shares: Tensor, onto: Tensor | None) -> Tensor:
    """Join y [T * choices, dim] of the pairs -> [T, dim] of the tokens; with `onto` add it to that in place."""
    n_rows, choices = shares.shape
    out = y.new_empty(n_rows, y.shape[1]) if onto is None else onto
    _join[(n_rows, triton.cdiv(y.shape[1], COLUMNS))](y, shares, onto, out, y.shape[1], choices, COLUMNS)
    return out
