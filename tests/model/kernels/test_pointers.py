"""What C gets: tensors on the CPU, contiguous, of the type that C reads. C itself checks none of this."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import model
from model.kernels.cpu import low_rank, native, packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.low_rank import PackedRows, PackedTargets
from model.kernels.cpu.packed import PackedExperts
from model.kernels.cpu.records import sampling

ROOT = Path(model.__path__[0])
IN_META = """
import torch
from model.kernels.cpu import native, packed
with torch.device("meta"):
    kernels = native.kernels()
    weights = packed.int8(16, 64)
    kernels.quantize(weights, 0, torch.eye(16, 64, device="cpu"))
    product = kernels.linear(weights, torch.ones(1, 64, device="cpu"))
print(product.tolist())
"""
"""A network is built so, without memory. The default device must not reach what C gets."""


@pytest.mark.skipif(native.kernels() is None, reason="needs the compiled library")
def test_the_default_device_reaches_no_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", IN_META], cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{[[1.0] * 16]}\n"), done.stderr


def test_one_function_gives_tensors_to_c() -> None:
    found = [path for path in ROOT.rglob("*.py") if ".data_ptr()" in path.read_text()]
    own = [path for path in found if "kernels/cuda" not in path.as_posix()]
    assert own == [ROOT / "kernels/cpu/records.py"]


def quantize(kernels: Kernels, rows: Tensor) -> None:
    kernels.quantize(packed.int8(16, 64), 0, rows)


def pack(kernels: Kernels, scales: Tensor) -> None:
    quants = torch.zeros(16, 2, 32, dtype=torch.int8)
    kernels.pack(packed.blocks(16, 64, 32, with_minima=False), 0, quants, scales, None)


def pack_superblocks(kernels: Kernels, rows: Tensor) -> None:
    kernels.pack_superblocks(packed.superblocks(16, 256), 0, rows)


def onto(kernels: Kernels, y: Tensor) -> None:
    kernels.linear(packed.int8(16, 64), torch.ones(2, 64), onto=y)


def norm(kernels: Kernels, weight: Tensor) -> None:
    kernels.linear(packed.int8(16, 64), torch.ones(2, 64), norm=weight)


def rows(kernels: Kernels, rows: Tensor) -> None:
    adapter = low_rank.pack(torch.ones(8, 64), [(0, 0, torch.ones(16, 8))])
    kernels.linear(packed.int8(16, 64), torch.ones(2, 64), adapters=PackedRows([(PackedTargets([adapter]), rows)]))


def gate(kernels: Kernels, weight: Tensor) -> None:
    pair = (packed.int8(64, 64), packed.int8(64, 32))
    block = PackedExperts(weight, [pair, pair], None, 1, 1.0)
    kernels.experts(block, torch.ones(2, 64), norm=None, eps=0.0, onto=torch.ones(2, 64))


def sample(kernels: Kernels, logits: Tensor) -> None:
    kernels.sample(logits, np.zeros(2, sampling()))


GOOD = {
    quantize: torch.ones(16, 64),
    pack: torch.ones(16, 2, dtype=torch.float16),
    pack_superblocks: torch.zeros(16, 144, dtype=torch.uint8),
    onto: torch.ones(2, 16),
    norm: torch.ones(64),
    rows: torch.arange(2),
    gate: torch.ones(2, 64),
    sample: torch.ones(2, 9),
}
WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "on another device": lambda tensor: tensor.to("meta"),
    "of another type": lambda tensor: tensor.to(torch.float64),
    "with gaps": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
}
ANY_STRIDES = {quantize, pack}
"""The first makes rows contiguous, and grids have strides of their own."""


@pytest.mark.parametrize("take", GOOD, ids=lambda take: take.__name__)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_c_cannot_read_is_refused(
    take: Callable[[Kernels, Tensor], None], wrong: str, kernels: Kernels
) -> None:
    take(kernels, GOOD[take].clone())
    if wrong == "with gaps" and take in ANY_STRIDES:
        take(kernels, WRONG[wrong](GOOD[take]))
        return
    with pytest.raises(ValueError, match=r"must (be|have)"):
        take(kernels, WRONG[wrong](GOOD[take]))


@pytest.mark.parametrize(
    ("n_bytes", "with_minima"), [(32, True), (32, False), (16, True), (16, False)], ids=["q8_min", "q8", "q4_min", "q4"]
)
def test_blocks_of_another_layout_are_refused(kernels: Kernels, n_bytes: int, with_minima: bool) -> None:
    """C takes the size of a record from the blocks: it would write beyond the memory of smaller ones."""
    weights = packed.blocks(16, 64, n_bytes, with_minima=with_minima)
    half = torch.ones(16, 2, dtype=torch.float16)
    for other, minima in ((32, True), (32, False), (16, True), (16, False)):
        if (other, minima) != (n_bytes, with_minima):
            quants = torch.zeros(16, 2, other, dtype=torch.int8 if other == 32 else torch.uint8)
            with pytest.raises(ValueError, match="weights have the layout q"):
                kernels.pack(weights, 0, quants, half, half if minima else None)
    with pytest.raises(ValueError, match=re.escape("the rows fit int8 or bfloat16")):
        kernels.quantize(weights, 0, torch.ones(16, 64))
    with pytest.raises(ValueError, match="the rows fit q4_k"):
        kernels.pack_superblocks(
            packed.blocks(16, 256, 16, with_minima=True), 0, torch.zeros(16, 144, dtype=torch.uint8)
        )
    quants = torch.zeros(16, 2, n_bytes, dtype=torch.int8 if n_bytes == 32 else torch.uint8)
    with pytest.raises(ValueError, match=re.escape("scales must have shape [16, 2], got [16, 1]")):
        kernels.pack(weights, 0, quants, half[:, :1], half if with_minima else None)
