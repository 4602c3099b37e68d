"""Packing by pack.c, every variant, against PyTorch's rounding and a permutation of whole tensors."""

import pytest
import torch

from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from tests.model import records
from tests.model.records import KINDS, quantize, random_blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_out", "n_in", "cuts"), [(1, 3, ()), (17, 65, (5,)), (48, 576, (16, 40)), (100, 130, (1,))])
def test_rows_become_the_bytes_of_pytorch(
    kernels: Kernels, dtype: torch.dtype, n_out: int, n_in: int, cuts: tuple[int, ...]
) -> None:
    weight = torch.randn(n_out, n_in).to(dtype)
    weight[0] = 0
    made = packed.int8(n_out, n_in)
    for first, stop in zip((0, *cuts), (*cuts, n_out), strict=True):
        kernels.quantize(made, first, weight[first:stop])
    expected = records.int8(*quantize(weight))
    assert torch.equal(made.packed, expected.packed)
    assert made.scales is not None
    assert expected.scales is not None
    assert torch.equal(made.scales, expected.scales)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_that_are_not_finite_are_refused(kernels: Kernels, bad: float, dtype: torch.dtype) -> None:
    for column in (0, 99):
        weight = torch.randn(20, 100).to(dtype)
        weight[7, column] = bad
        with pytest.raises(ValueError, match="not finite"):
            kernels.quantize(packed.int8(20, 100), 0, weight)


def test_rows_beyond_the_end_are_refused(kernels: Kernels) -> None:
    for first, shape in ((1, (20, 64)), (-1, (4, 64)), (0, (4, 65))):
        with pytest.raises(ValueError, match="are not in 20 of 64"):
            kernels.quantize(packed.int8(20, 64), first, torch.zeros(shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_out", "cuts"), [(16, ()), (80, (32,)), (80, (5, 37))])
def test_blocks_are_permuted(kernels: Kernels, kind: str, n_out: int, cuts: tuple[int, ...]) -> None:
    parts = random_blocks(kind, n_out, 3)
    if kind.startswith("q8"):
        parts[0][0, 0, 0] = -128
    made = packed.blocks(n_out, 96, parts[0].shape[2], with_minima=parts[2] is not None)
    for first, stop in zip((0, *cuts), (*cuts, n_out), strict=True):
        quants, scales, mins = (None if part is None else part[first:stop] for part in parts)
        assert quants is not None
        assert scales is not None
        wide = torch.cat((scales[..., None].view(torch.uint8), quants.view(torch.uint8)), dim=2)  # as in a file
        kernels.pack(made, first, wide[..., 2:].view(quants.dtype), wide[..., :2].view(torch.float16)[..., 0], mins)
    assert torch.equal(made.packed, records.blocks(*parts))


def test_outputs_beyond_the_last_are_zeros(kernels: Kernels) -> None:
    found = records.packed(kernels, *random_blocks("q4", 50, 3)).packed
    assert not found[-1].view(3, -1, 16, 2)[:, -1, 2:].any()  # the scales
