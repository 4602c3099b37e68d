"""Compares two variants of the kernels at start: products of 1, 7 and 150 rows with weights in each layout.

Attention over pages in bfloat16 is compared too.

A processor, a hypervisor or a compiler may compute other than its manual says. Then the next variant serves.
"""

from functools import partial
from timeit import repeat

import torch
from torch import Tensor

from model.kernels.cpu import packed
from model.kernels.cpu.build import variants
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cpu.records import (
    CELL_KINDS,
    FORMATS,
    PAGE_SIZE,
    SUPERBLOCK,
    SUPERBLOCK_BYTES,
    floats,
    pointer,
    struct,
)
from model.kernels.groups import BLOCK_GROUP, MXFP4_GROUP, NVFP4_GROUP

N_OUT, N_IN = 88, SUPERBLOCK
"""Five blocks of 16 outputs and a half: whole tiles of every width, a narrower one and an incomplete block."""
ROWS = 1, 7, 150
"""One row; a few; more than a task has, which is 128, with a whole tile of AMX and rows beyond it in the last one."""
OUTLIERS = [0, 4, 72, 140]
"""Rows in which two channels are outliers: of int8 they take another product. Some tiles have none of these rows."""
SEPARATE = frozenset(("baseline",) if "avx2" in variants() else ())
"""Variants that round a product before they add it: those of x86 without FMA."""
MEASURED = frozenset(("amx",))
"""Variants that serve only where they are faster than the next one: some hypervisors emulate these instructions."""
LEAST_GAIN = 1.2
"""How many times as fast they must be. Less may be chance, and gains little."""
REPEATS = 5


def same_bits(first: str, second: str, layout: str) -> bool:
    """Return whether two variants promise the same bits for any numbers; others do if no sum is ever rounded.

    A product of two numbers in bfloat16 is exact, and the sums of int8 are whole numbers: whether a product is rounded
    before it is added does not matter.
    """
    return layout in ("bfloat16", "int8") or (first not in SEPARATE and second not in SEPARATE)


HEADS, KV_HEADS, HEAD_DIM = 6, 2, 64
SPANS = (0, 70), (70, 75), (75, 76)
"""Rows of a sequence that are computed together: many queries for a key head, fewer than 16, those of one row."""


def differing(first: Kernels, second: Kernels) -> list[str]:
    """Return the layouts in which two variants give other bits than they promise, and "attention" if it does."""
    wrong = [layout for layout in FORMATS if not _agree(first, second, layout)]
    alike = {first.variant, second.variant} & SEPARATE or torch.equal(attention(first), attention(second))
    return wrong if alike else [*wrong, "attention"]


def attention(kernels: Kernels) -> Tensor:
    """Compute attention [76, 6 * 64] of all rows of a sequence with keys and values in three pages of bfloat16."""
    stop = SPANS[-1][1]
    heads = HEADS + 2 * KV_HEADS
    qkv = numbers(stop, heads * HEAD_DIM, whole=False) / 50
    rotations = torch.tensor([0.6] * (HEAD_DIM // 2) + [0.8] * (HEAD_DIM // 2), device="cpu").repeat(stop, 1)
    n_pages = -(-stop // PAGE_SIZE)
    cells = torch.zeros(n_pages, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cpu")
    places, pages = (torch.arange(n, dtype=torch.int64, device="cpu") for n in (stop, n_pages))
    out = torch.empty(stop, HEADS * HEAD_DIM, device="cpu")
    for start, end in SPANS:
        call = struct("attention_call")(
            qkv=floats("qkv", qkv[start:end]),
            rotations=floats("rotations", rotations[start:end]),
            out=floats("out", out[start:end]),
            cells=pointer("cells", cells, torch.bfloat16),
            slots=pointer("slots", places[start:end], torch.int64),
            pages=pointer("pages", pages, torch.int64),
            n_rows=end - start,
            n_heads=HEADS,
            n_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            kind=CELL_KINDS[torch.bfloat16],
        )
        kernels.plan(call, torch.tensor([[0, end - start, start, 0, 0]], dtype=torch.int64, device="cpu"))
        kernels.attention(call)
    return out


def speed(first: Kernels, second: Kernels) -> float:
    """Return how many times as fast as `second` the products of `first` are: least times, measured in turns."""
    times = [_seconds(kernels) for _ in range(2) for kernels in (first, second)]
    return min(times[1::2]) / min(times[::2])


def _seconds(kernels: Kernels) -> float:
    """Measure the least time of a product of many rows, in int8 and in bfloat16 together."""
    x = numbers(max(ROWS), N_IN, whole=False)
    made = [weights(kernels, layout, whole=False) for layout in ("int8", "bfloat16")]
    return sum(min(repeat(partial(kernels.linear, one, x), number=1, repeat=REPEATS)) for one in made)


def _agree(first: Kernels, second: Kernels, layout: str) -> bool:
    """Compare two variants, each with its own weights: their orders of channels in bfloat16 differ."""
    whole = not same_bits(first.variant, second.variant, layout)
    mine, theirs = (weights(kernels, layout, whole=whole) for kernels in (first, second))
    x = numbers(max(ROWS), N_IN, whole=whole)
    if not whole:
        x[OUTLIERS, ::200] *= 50
    return all(torch.equal(first.linear(mine, x[:n]), second.linear(theirs, x[:n])) for n in ROWS)


def weights(kernels: Kernels, layout: str, *, whole: bool) -> PackedWeights:
    """Make weights [N_OUT, N_IN] that the kernels have packed."""
    if layout in ("int8", "bfloat16"):
        made = packed.int8(N_OUT, N_IN) if layout == "int8" else packed.bfloat16(N_OUT, N_IN)
        kernels.quantize(made, 0, numbers(N_OUT, N_IN, whole=whole))
    elif layout == "q4_k":
        made = packed.superblocks(N_OUT, N_IN)
        kernels.pack_superblocks(made, 0, superblocks(whole=whole))
    elif layout in ("nvfp4", "mxfp4"):
        group = NVFP4_GROUP if layout == "nvfp4" else MXFP4_GROUP
        made = packed.fp4(N_OUT, N_IN, group)
        kernels.pack_fp4(made, 0, _bytes(N_OUT, N_IN // 2), fp4_scales(group, whole=whole), 2.0 if whole else 0.37)
    else:
        quants, scales, minima = blocks(layout, whole=whole)
        made = packed.blocks(N_OUT, N_IN, quants.shape[2], with_minima=minima is not None)
        kernels.pack(made, 0, quants, scales, minima)
    return made


def blocks(layout: str, *, whole: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Make quants, scales and minima for `Kernels.pack`; whole ones have scales and minima of 1 or 2."""
    n_groups, n_bytes = N_IN // BLOCK_GROUP, 32 if layout.startswith("q8") else 16
    quants = _bytes(N_OUT, n_groups * n_bytes).view(N_OUT, n_groups, n_bytes)
    some = _bytes(N_OUT, n_groups)
    scales = (some % 2 + 1 if whole else some / 700).half()
    minima = scales.roll(1, 0).neg() if layout.endswith("_min") else None
    return quants.view(torch.int8) if n_bytes == 32 else quants, scales, minima


def fp4_scales(group: int, *, whole: bool) -> Tensor:
    """Make scales for `Kernels.pack_fp4`; whole ones are 1, others any of e4m3 or powers of two from 2^-8 to 2^7."""
    some = _bytes(N_OUT, N_IN // group)
    if group == NVFP4_GROUP:
        return torch.full_like(some, 0x38) if whole else some % 127
    return torch.full_like(some, 127) if whole else some % 16 + 119


def superblocks(*, whole: bool) -> Tensor:
    """Make rows of Q4_K as in a file, with any scales; the factors of whole ones are 1."""
    rows = _bytes(N_OUT, SUPERBLOCK_BYTES)
    factors = torch.tensor([1.0, 1.0] if whole else [0.37, 0.21], dtype=torch.float16, device="cpu")
    rows[:, :4] = factors.view(torch.uint8)
    return rows


def numbers(n: int, width: int, *, whole: bool) -> Tensor:
    """Make numbers [n, width] of both signs. Whole ones are at most 127, which each group has: they are exact bytes."""
    found = (_bytes(n, width).float() - 128).clamp(min=-127)
    if not whole:
        return found * 0.9 + found.roll(1, 1) * 0.03
    found[:, ::BLOCK_GROUP] = 127
    return found


def _bytes(n: int, width: int) -> Tensor:
    """Make bytes [n, width] that look random."""
    steps = torch.arange(n * width, dtype=torch.int64, device="cpu")
    return (steps * 48271 % 65521 % 256).to(torch.uint8).view(n, width)
