"""Blocks of Q4_K in the bits of the file, every variant of the kernels, against the same in groups of 32."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model.checkpoint.gguf.index import Index, TensorEntry
from model.checkpoint.stored import Stored
from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.linear.int4 import Int4Linear
from tests.model import records
from tests.model.records import random_superblocks


def of(rows: Tensor) -> Stored:
    return Stored(rows, "gguf", kind="Q4_K")


def packed_rows(kernels: Kernels, rows: Tensor, cuts: Sequence[int] = ()) -> PackedWeights:
    made = packed.superblocks(len(rows), of(rows).shape[1])
    for first, stop in zip((0, *cuts), (*cuts, len(rows)), strict=True):
        kernels.pack_superblocks(made, first, rows[first:stop])
    return made


@pytest.mark.parametrize("factors", [[3e-4, 0.0, -2e-4], [1e-6, 6e-8, 1e-7], [600.0, 1e-5]], ids=str)
@pytest.mark.parametrize(("n_out", "n_blocks", "cuts"), [(16, 1, ()), (50, 3, (7, 32)), (208, 2, (16,)), (48, 240, ())])
def test_products_have_the_bits_of_groups(
    kernels: Kernels, factors: list[float], n_out: int, n_blocks: int, cuts: tuple[int, ...]
) -> None:
    """Factors below the normal range of float16 too: PyTorch rounds their products with scales.

    Decoded tables of three blocks of 240 * 256 channels exceed the memory of a thread.
    """
    rows = random_superblocks(n_out, n_blocks, factors)
    groups = of(rows).blocks()
    assert groups is not None
    expected = records.packed(kernels, groups.quants, groups.scales, groups.mins)
    x = torch.randn(33, n_blocks * 256)
    made = packed_rows(kernels, rows, cuts)
    assert made.packed.nbytes == -(-n_out // 16) * 16 * n_blocks * 144
    for n_rows in (1, 2, 7, 33):
        assert torch.equal(kernels.linear(made, x[:n_rows]), kernels.linear(expected, x[:n_rows]))


SMALL_STACK = """
import threading
import torch
from model.kernels.cpu import native, packed
native.available()
native.use_threads(1)
kernels, weights = native.kernels(), packed.superblocks(16, 65536)
kernels.pack_superblocks(weights, 0, torch.zeros(16, 256 * 144, dtype=torch.uint8))
threading.stack_size(256 * 1024)
thread = threading.Thread(target=lambda: print(kernels.linear(weights, torch.ones(2, 65536)).abs().sum().item()))
thread.start()
thread.join()
"""


def test_decoded_tables_are_not_on_the_stack() -> None:
    """Threads of musl have 128 KiB. The tables of 65,536 channels take 256."""
    done = subprocess.run([sys.executable, "-c", SMALL_STACK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr


@pytest.mark.parametrize(
    ("kinds", "bits"), [(("Q4_K", "Q4_K", "Q4_K"), 4.5), (("Q4_K", "Q4_K", "Q6_K"), 9), (("Q4_K", "Q4_0", "Q4_K"), 5)]
)
def test_the_index_counts_their_bits(kinds: tuple[str, ...], bits: float) -> None:
    entries = (
        TensorEntry(f"layers.0.attention.w{part}.weight", kind, (512, 512), 0, 0)
        for part, kind in zip("qkv", kinds, strict=True)
    )
    assert Index((), tuple(entries)).block_bits == bits


def test_a_projection_keeps_the_bits_of_its_file_where_it_can() -> None:
    """Beside another kind, and with factors that float16 may not hold, it gets groups of 32."""
    fits, large = random_superblocks(32, 2, [1e-3]), random_superblocks(32, 2, [1e-3])
    large[0, :4] = torch.tensor([3000.0, 0.0]).half().view(torch.uint8)
    large[0, 4:8] = 1  # times scales up to 1 the factor is finite
    large[0, 12:16] = 0
    made = {name: Int4Linear(512, 64) for name in ("alone", "beside", "large")}
    for name, second in (("alone", fits), ("beside", torch.randn(32, 512)), ("large", large)):
        made[name].take(0, of(fits))
        made[name].take(32, Stored(second) if name == "beside" else of(second))
    bits = {name: one.packed.packed.nbytes * 8 / (64 * 512) for name, one in made.items() if one.packed}
    assert bits == {"alone": 4.5, "beside": 5, "large": 5}
    damaged = random_superblocks(64, 2, [1e-3])
    damaged[3, :2] = torch.tensor([float("inf")]).half().view(torch.uint8)
    with pytest.raises(ValueError, match="not finite"):
        Int4Linear(512, 64).take(0, of(damaged))
