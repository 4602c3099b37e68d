"""LoRA adapters on a GPU: two launches add all adapters of a step to one product. Rows without adapter cost nothing.

Rows are sorted by adapter into blocks of ROWS slots; a block has rows of one adapter. The matrices stay where they are:
a table on the device has their addresses. Adapters can come and go, and have ranks of their own. A program's tile is
always the same: a row's bits depend on no other row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cuda import interpreted
from model.machine.transfers import upload

PARTS = 3
"""Parts of B at most: those of q, k and v."""
ENTRY = 2 + 5 * PARTS
"""Values of an entry: address of A, its ranks; for each part first output, outputs, first rank, ranks, address of B."""
ROWS, RANKS, CHANNELS, OUTPUTS = 16, 16, 128, 64
_PLAIN = tl.constexpr(interpreted())
"""The interpreter has no bfloat16: it computes in float32."""
_ENTRY, _PARTS = tl.constexpr(ENTRY), tl.constexpr(PARTS)


@dataclass(frozen=True, slots=True)
class Grouped:
    """The rows of a step by adapter, and the adapters' matrices.

    `slots` [blocks * ROWS] are rows, -1 for none; `owners` [blocks] are the adapters of the blocks. `table` [products,
    adapters, ENTRY] has zeros where an adapter has nothing for a product. `width` is the greatest number of ranks.
    """

    slots: Tensor
    owners: Tensor
    table: Tensor
    width: int


def entry(a: Tensor, parts: Sequence[tuple[int, int, Tensor]]) -> list[int]:
    """Return the entry of a [ranks, n_in] and parts of B (first output, first rank, b [n, r]); they must stay alive."""
    found = [a.data_ptr(), len(a)]
    for first, rank, b in parts:
        found += [first, len(b), rank, b.shape[1], b.data_ptr()]
    return found + [0] * (ENTRY - len(found))


def group(rows: Sequence[NDArray[np.int64]], table: NDArray[np.int64], device: torch.device) -> Grouped:
    """Group the rows: `rows[i]` are those of adapter i, whose entries are table[:, i]."""
    slots = [np.pad(one, (0, -len(one) % ROWS), constant_values=-1) for one in rows]
    owners = np.repeat(np.arange(len(rows)), [len(one) // ROWS for one in slots])
    placed = upload([np.concatenate(slots), owners, table.ravel()], device)
    return Grouped(placed[0], placed[1], placed[2].view(table.shape), int(table[:, :, 1].max()))


@triton.jit
def _rows_and_entry(slots, owners, table, ROWS: tl.constexpr):
    """Return the rows [ROWS] of this program's block, and where the entry of their adapter is."""
    block = tl.program_id(0)
    return tl.load(slots + block * ROWS + tl.arange(0, ROWS)), table + tl.load(owners + block) * _ENTRY


@triton.jit
def _load(at, mask):
    values = tl.load(at, mask=mask, other=0.0)
    return values.to(tl.float32) if _PLAIN else values


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["slots", "owners", "table"])
def _shrink(
    x, u, slots, owners, table, n_in, width, ROWS: tl.constexpr, RANKS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Compute u = A x in program (block of rows, block of ranks)."""
    row, entry = _rows_and_entry(slots, owners, table, ROWS)
    ranks = tl.load(entry + 1)
    rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    if tl.program_id(1) * RANKS >= ranks:
        return
    a = tl.load(entry).to(tl.pointer_type(x.dtype.element_ty))
    there, known = (row >= 0)[None, :], (rank < ranks)[:, None]
    sums = tl.zeros((RANKS, ROWS), tl.float32)
    for first in range(0, n_in, CHANNELS):
        k = first + tl.arange(0, CHANNELS)
        weights = _load(a + rank[:, None] * n_in + k[None, :], known & (k < n_in)[None, :])
        tile = _load(x + row[None, :] * n_in + k[:, None], there & (k < n_in)[:, None])
        sums = tl.dot(weights, tile, sums, input_precision="ieee")
    tl.store(u + row[None, :] * width + rank[:, None], sums.to(u.dtype.element_ty), mask=there & known)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["slots", "owners", "table"])
def _expand(
    u, y, slots, owners, table, n_out, width, ROWS: tl.constexpr, RANKS: tl.constexpr, OUTPUTS: tl.constexpr
):  # fmt: skip
    """Add y += B u in program (block of rows, block of outputs). Outputs of no part keep their bits."""
    row, entry = _rows_and_entry(slots, owners, table, ROWS)
    start = tl.program_id(1) * OUTPUTS
    there = (row >= 0)[None, :]
    for part in tl.static_range(_PARTS):
        values = entry + 2 + 5 * part
        first, n, rank = tl.load(values), tl.load(values + 1), tl.load(values + 2)
        ranks = tl.load(values + 3)
        b = tl.load(values + 4).to(tl.pointer_type(u.dtype.element_ty))
        output = start - first + tl.arange(0, OUTPUTS)
        inside = ((output >= 0) & (output < n))[:, None]
        if (start < first + n) & (first < start + OUTPUTS):
            sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
            for i in range(0, ranks, RANKS):
                k = i + tl.arange(0, RANKS)
                weights = _load(b + output[:, None] * ranks + k[None, :], inside & (k < ranks)[None, :])
                tile = _load(u + row[None, :] * width + rank + k[:, None], there & (k < ranks)[:, None])
                sums = tl.dot(weights, tile, sums, input_precision="ieee")
            at = y + row[None, :] * n_out + (first + output)[:, None]
            sums += tl.load(at, mask=inside & there, other=0.0).to(tl.float32)
            tl.store(at, sums.to(y.dtype.element_ty), mask=inside & there)


def add(y: Tensor, x: Tensor, grouped: Grouped, product: int) -> None:
    """Add B (A x) to y [T, n_out] in place for rows with adapters; x [T, n_in]. All matrices have the format of x."""
    u, table = x.new_empty(len(x), grouped.width), grouped.table[product]
    blocks, given = len(grouped.owners), (grouped.slots, grouped.owners, table)
    ranks, outputs = triton.cdiv(grouped.width, RANKS), triton.cdiv(y.shape[1], OUTPUTS)
    _shrink[(blocks, ranks)](x.contiguous(), u, *given, x.shape[1], grouped.width, ROWS, RANKS, CHANNELS)
    _expand[(blocks, outputs)](u, y, *given, y.shape[1], grouped.width, ROWS, RANKS, OUTPUTS)
