"""One token from each row of logits: the function of kernels/cpu/sample.c, with the same bits, in one launch.

A program has a row. It reads the row once for its greatest logit, and once to sample. If the row has min_p, top_k or
top_p, the second reading collects the candidates: the weights that can matter, and their ids. Bisection over the bits
of the candidates finds the limits. Counts and sums are integers, and arithmetic of floats is rounded as in C: results
do not depend on the order of additions, nor on the GPU.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE, SAMPLING
from model.machine.transfers import staged

TILE = 2048
"""Values that a program computes at once."""
WARPS, REGISTERS = 8, 128
"""Of a program, and of each of its threads: two programs fit on a multiprocessor."""
_WORDS = tl.constexpr(len(SAMPLING.names or ()))
_NO_TOKEN, _NOT_FINITE = tl.constexpr(NO_TOKEN), tl.constexpr(NOT_FINITE)
_BITS = tl.constexpr(30)
"""The lowest bits of a weight, which is at most 1: the others are 0."""


@triton.jit
def _exponential(x):
    """As in vectors.h, for x <= 0."""
    tiny = x < -87.3
    x = tl.where(tiny, 0.0, x)
    shifted = x * 1.44269504088896341 + 12582912.0  # its last bits are the nearest integer
    k = shifted - 12582912.0
    r = tl.fma(k, -0.693359375, x)
    r = tl.fma(k, 2.12194440e-4, r)
    p = tl.fma(r, 1.9875691500e-4, 1.3981999507e-3)
    p = tl.fma(p, r, 8.3334519073e-3)
    p = tl.fma(p, r, 4.1665795894e-2)
    p = tl.fma(p, r, 1.6666665459e-1)
    p = tl.fma(p, r, 5.0000001201e-1)
    p = tl.fma(p, r * r, r + 1.0)
    bits = p.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return tl.where(tiny, 0.0, bits.to(tl.float32, bitcast=True))


@triton.jit
def _logarithm(x):
    """As in vectors.h, for normal, positive x."""
    bits = x.to(tl.int32, bitcast=True)
    m = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    small = m < 0.707106781186547524
    k = ((bits >> 23) - 126 - small.to(tl.int32)).to(tl.float32)
    m = m + tl.where(small, m, 0.0) - 1.0
    z = m * m
    p = tl.fma(m, 7.0376836292e-2, -1.1514610310e-1)
    p = tl.fma(p, m, 1.1676998740e-1)
    p = tl.fma(p, m, -1.2420140846e-1)
    p = tl.fma(p, m, 1.4249322787e-1)
    p = tl.fma(p, m, -1.6668057665e-1)
    p = tl.fma(p, m, 2.0000714765e-1)
    p = tl.fma(p, m, -2.4999993993e-1)
    p = tl.fma(p, m, 3.3333331174e-1)
    p = p * m * z
    p = tl.fma(k, -2.12194440e-4, p)
    p = tl.fma(z, -0.5, p)
    return tl.fma(k, 0.693359375, m + p)


@triton.jit
def _uniform(token, start, step):
    """As noise.py: uniforms strictly between 0 and 1."""
    x = (token * step + start).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return ((x >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def _weight(x, top, temperature, min_p):
    """exp((x - top) / temperature), or 0 below min_p."""
    weight = _exponential(tl.div_rn(x - top, temperature))
    return tl.where(weight < min_p, 0.0, weight)


@triton.jit
def _fixed(weight):
    """Weights 0 to 1 as int64, in units of 2^-41: their sums are exact in any order. See `fixed` in sample.c."""
    scaled = weight * 1048576.0
    high = scaled.to(tl.int32)
    low = ((scaled - high.to(tl.float32)) * 2097152.0).to(tl.int32)
    return (high.to(tl.int64) << 21) + low


@triton.jit
def _measure(weight, COUNT: tl.constexpr):
    """1, or the weight in units of 2^-41."""
    return (weight >= 0).to(tl.int64) if COUNT else _fixed(weight)


@triton.jit
def _greatest(x, n, TILE: tl.constexpr):
    """The greatest [TILE] of the values i, i + TILE, i + 2 TILE and so on, their lowest ids, and 1 where one is NaN."""
    offsets = tl.arange(0, TILE)
    most = tl.full((TILE,), float("-inf"), tl.float32)
    place = tl.zeros((TILE,), tl.int32)
    none = tl.zeros((TILE,), tl.int32)
    for first in tl.range(0, n, TILE, loop_unroll_factor=4):
        value = tl.load(x + first + offsets, mask=first + offsets < n, other=float("-inf"))
        place = tl.where(value > most, first + offsets, place)
        most = tl.where(value > most, value, most)
        none |= (value != value).to(tl.int32)
    return most, place, none


@triton.jit
def _winner(most, place):
    """The greatest value, and the lowest of its ids."""
    top = tl.max(most, axis=0)
    return top, tl.min(tl.where(most == top, place, 0x7FFFFFFF), axis=0)


@triton.jit
def _least_of(weight, k):
    """The k-th greatest of the weights [TILE], or 0 if they are fewer."""
    bits = weight.to(tl.int32, bitcast=True)
    cut = k * 0
    for i in range(_BITS):
        tried = cut | (1 << 29 >> i)
        cut = tl.where(tl.sum((bits >= tried).to(tl.int32), axis=0) >= k, tried, cut)
    return cut.to(tl.float32, bitcast=True)


@triton.jit
def _collect(x, ids, n, top, temperature, min_p, least, TILE: tl.constexpr):
    """Pack positive weights from `least` on and their ids at the start of x and ids: their number, and the sum of all.

    A tile is read before the packed weights reach it.
    """
    offsets = tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.int64)
    m = 0
    for first in range(0, n, TILE):
        there = first + offsets < n
        value = tl.load(x + first + offsets, mask=there, other=float("-inf"))
        weight = _weight(value, top, temperature, min_p)
        total += _fixed(weight)
        found = ((weight >= least) & (weight > 0)).to(tl.int32)
        place = m + tl.cumsum(found, axis=0) - 1
        tl.store(x + place, weight, mask=found > 0)
        tl.store(ids + place, first + offsets, mask=found > 0)
        m += tl.sum(found, axis=0)
    tl.debug_barrier()
    return m, tl.sum(total, axis=0)


@triton.jit
def _amount(x, m, bits, COUNT: tl.constexpr, TILE: tl.constexpr):
    """The number, or the sum, of the m weights from `bits` on."""
    offsets = tl.arange(0, TILE)
    amount = tl.zeros((TILE,), tl.int64)
    for first in range(0, m, TILE):
        weight = tl.load(x + first + offsets, mask=first + offsets < m, other=-1.0)
        amount += tl.where(weight.to(tl.int32, bitcast=True) >= bits, _measure(weight, COUNT), 0)
    return tl.sum(amount, axis=0)


@triton.jit
def _keep(x, m, wanted, COUNT: tl.constexpr, TILE: tl.constexpr):
    """Of m weights, keep the fewest greatest whose number or sum is `wanted`, ties by id. The others become 0."""
    cut, above = (wanted * 0).to(tl.int32), wanted * 0
    for i in range(_BITS):
        tried = cut | (1 << 29 >> i)
        amount = _amount(x, m, tried, COUNT, TILE)
        above = tl.where(amount >= wanted, above, amount)
        cut = tl.where(amount >= wanted, tried, cut)
    one = _measure(cut.to(tl.float32, bitcast=True), COUNT)
    places = (wanted - above + one - 1) // one
    offsets = tl.arange(0, TILE)
    seen = places * 0
    for first in range(0, m, TILE):
        there = first + offsets < m
        weight = tl.load(x + first + offsets, mask=there, other=-1.0)
        bits = weight.to(tl.int32, bitcast=True)
        equal = (bits == cut).to(tl.int32)
        kept = (bits > cut) | ((equal > 0) & (seen + tl.cumsum(equal, axis=0) <= places))
        tl.store(x + first + offsets, tl.where(kept, weight, 0.0), mask=there)
        seen += tl.sum(equal, axis=0)
    tl.debug_barrier()


@triton.jit
def _race(x, ids, m, top, temperature, start, step, PACKED: tl.constexpr, TILE: tl.constexpr):
    """The greatest weight / E and its id, where E is exponential noise. x has packed weights, or logits."""
    offsets = tl.arange(0, TILE)
    most = tl.zeros((TILE,), tl.float32)
    place = tl.zeros((TILE,), tl.int32)
    for first in range(0, m, TILE):
        token = first + offsets
        there = token < m
        weight = tl.load(x + token, mask=there, other=0.0 if PACKED else float("-inf"))
        if PACKED:
            token = tl.load(ids + token, mask=there, other=0)
        else:
            weight = _weight(weight, top, temperature, 0.0)
        clock = tl.div_rn(weight, -_logarithm(_uniform(token, start, step)))
        place = tl.where(clock > most, token, place)
        most = tl.where(clock > most, clock, most)
    return _winner(most, place)


@triton.jit
def _sample(logits, ids, rows, tokens, n, TILE: tl.constexpr):
    """Program (row): its token, or NO_TOKEN or NOT_FINITE. `rows` are words of SAMPLING; the logits are overwritten."""
    row = tl.program_id(0).to(tl.int64)
    x, ids, at = logits + row * n, ids + row * n, rows + row * _WORDS
    temperature = tl.load(at).to(tl.float32, bitcast=True)
    min_p = tl.load(at + 1).to(tl.float32, bitcast=True)
    top_p = tl.load(at + 2).to(tl.float32, bitcast=True)
    top_k, start, step = tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)
    most, place, none = _greatest(x, n, TILE)
    top, token = _winner(most, place)
    token = tl.where(top == float("-inf"), _NO_TOKEN, token)
    token = tl.where((tl.max(none, axis=0) > 0) | (top == float("inf")), _NOT_FINITE, token)
    if (token >= 0) & (temperature > 0):
        counted = (top_k > 0) & (top_k < n)
        if counted | (top_p < 1) | (min_p > 0):
            # All weights below `least` together are less than the part that top_p may hide.
            least = tl.where(top_p < 1, tl.div_rn(0.5 * (1 - top_p), n.to(tl.float32)), 0.0)
            if counted:
                least = _least_of(_weight(most, top, temperature, min_p), top_k)
            m, total = _collect(x, ids, n, top, temperature, min_p, least, TILE)
            if counted:
                _keep(x, m, top_k.to(tl.int64), True, TILE)
                total = _amount(x, m, 0, False, TILE)
            if top_p < 1:
                _keep(x, m, tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), False, TILE)
            value, token = _race(x, ids, m, top, temperature, start, step, True, TILE)
        else:
            value, token = _race(x, ids, n, top, temperature, start, step, False, TILE)
        tl.debug_barrier()
        tl.store(x + token, value)
    tl.store(tokens + row, token.to(tl.int64))


def sample(logits: Tensor, rows: NDArray[np.void]) -> Tensor:
    """Tokens [N] int64 sampled from logits [N, vocab_size] float32, which it overwrites. `rows` [N] are SAMPLING.

    Afterwards the logit of a sampled token is its value in the race; see `choose` in model/step/distribution.py.
    """
    fits = logits.dtype is torch.float32 and logits.is_contiguous() and rows.dtype == SAMPLING
    if not fits or len(rows) != len(logits):
        raise ValueError(f"expected {len(logits)} rows of {SAMPLING} and packed float32 logits, got {logits.dtype}")
    n_rows, n = logits.shape
    words = staged(torch.from_numpy(rows.view(np.int32)), logits.device).to(logits.device, non_blocking=True)
    ids = torch.empty(logits.shape, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(n_rows, dtype=torch.int64, device=logits.device)
    options = {"num_warps": WARPS, "maxnreg": REGISTERS, "enable_fp_fusion": False}
    _sample[(n_rows,)](logits, ids, words, tokens, n, TILE, **options)
    return tokens
