"""LoRA adapters in the compiled kernels, in every variant: exact integers, float64, and the bits of a row alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.low_rank import PackedLowRank, PackedRows, PackedTargets, adjacent, pack
from model.kernels.cpu.packed import int8

Parts = list[tuple[int, int, Tensor]]
SHAPES = [(33, 50), (576, 960), (1, 3), (2100, 17)]
RANKS = [1, 8, 17, 64]


def parts_of(b: Tensor, *lengths: int) -> Parts:
    """b [n_out, r] as parts of `lengths` outputs, which have r ranks each: the ranks of one follow those of another."""
    firsts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [
        (first, i * b.shape[1], b[first : first + n]) for i, (first, n) in enumerate(zip(firsts, lengths, strict=True))
    ]


class Rows(PackedRows):
    """Adapters of one projection with their rows."""

    def __init__(self, *runs: tuple[PackedLowRank, list[int]]) -> None:
        super().__init__([(PackedTargets([packed]), torch.tensor(rows)) for packed, rows in runs])
        self.runs = runs  # keep alive the memory of the adapters


def adapt(kernels: Kernels, rows: Rows, x: Tensor, y: Tensor, **options: Any) -> None:
    """Add to y what the adapters give, beside a product of zeros."""
    n_in = x.shape[1] // (1 + options.get("gated", False))
    zeros = int8(y.shape[1], n_in)
    kernels.quantize(zeros, 0, torch.zeros(y.shape[1], n_in))
    kernels.linear(zeros, x, onto=y, adapters=rows, **options)


def change(x: Tensor, a: Tensor, parts: Parts, n_out: int) -> Tensor:
    """B (A x) in float64."""
    u = x.double() @ a.double().T
    y = torch.zeros(len(x), n_out, dtype=torch.float64)
    for first, rank, b in parts:
        y[:, first : first + len(b)] = u[:, rank : rank + b.shape[1]] @ b.double().T
    return y


def units(*shape: int) -> Tensor:
    return torch.randint(-1, 2, shape).float()


@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
@pytest.mark.parametrize("rank", RANKS)
def test_small_integers_come_out_exactly(kernels: Kernels, n_in: int, n_out: int, rank: int) -> None:
    """Sums up to 256 are exact in bfloat16. Rows without adapter keep their bits."""
    torch.manual_seed(rank)
    a, b, x, y = units(rank, n_in), units(n_out, rank), units(11, n_in), torch.randint(-9, 9, (11, n_out)).float()
    used = [0, 2, 3, 4, 7, 8, 10]
    expected = y.clone()
    expected[used] += change(x[used], a, parts_of(b, n_out), n_out).float()
    adapt(kernels, Rows((pack(a, parts_of(b, n_out)), used)), x, y)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("rank", [1, 3, 16])
@pytest.mark.parametrize("lengths", [(32, 16, 16), (20, 7, 9), (5, 40)])
def test_parts_may_share_a_block_of_outputs(kernels: Kernels, lengths: tuple[int, ...], rank: int) -> None:
    """q, k and v have ranks of their own. One of them may have none."""
    torch.manual_seed(rank)
    n_out, x = sum(lengths), units(5, 40)
    a, b = units(len(lengths) * rank, 40), units(n_out, rank)
    whole = parts_of(b, *lengths)
    for parts in (whole, whole[:1], whole[-1:], [whole[0], whole[-1]]):
        y = torch.ones(5, n_out)
        adapt(kernels, Rows((pack(a, parts), [1, 2, 4])), x, y)
        expected = torch.ones(5, n_out)
        expected[[1, 2, 4]] += change(x[[1, 2, 4]], a, parts, n_out).float()
        assert torch.equal(y, expected)


@pytest.mark.parametrize("kind", ["plain", "normed", "gated"])
@pytest.mark.parametrize(("n_in", "n_out"), [(576, 960), (100, 33)])
def test_it_is_the_product_in_float64(kernels: Kernels, n_in: int, n_out: int, kind: str) -> None:
    """Where pairs of bfloat16 are multiplied, activations and u are rounded to 8 bits, else only the weights."""
    torch.manual_seed(0)
    a, b = torch.randn(16, n_in).bfloat16().float(), torch.randn(n_out, 16).bfloat16().float()
    x, scale = torch.randn(9, n_in * (2 if kind == "gated" else 1)) * 3, torch.rand(n_in)
    options, inputs = {}, x
    if kind == "normed":
        options, inputs = {"norm": scale, "eps": 1e-5}, rms_norm(x, (n_in,), None, 1e-5) * scale
    elif kind == "gated":
        options, inputs = {"gated": True}, silu(x[:, :n_in]) * x[:, n_in:]
    y = torch.zeros(9, n_out)
    adapt(kernels, Rows((pack(a, parts_of(b, n_out)), [*range(9)])), x, y, **options)
    expected = change(inputs, a, parts_of(b, n_out), n_out).numpy()
    error = np.linalg.norm(y.numpy() - expected) / np.linalg.norm(expected)
    assert error < (4e-3 if kernels.variant in ("avx512bf16", "amx") else 1e-6)


@pytest.mark.parametrize("kind", ["plain", "normed", "gated"])
def test_a_row_gives_the_same_bits_beside_any_others(kernels: Kernels, kind: str) -> None:
    torch.manual_seed(0)
    n_in, n_out, n_rows = 100, 83, 37
    options = {"norm": torch.rand(n_in), "eps": 1e-5} if kind == "normed" else {"gated": kind == "gated"}
    x, before = torch.randn(n_rows, n_in * (2 if kind == "gated" else 1)), torch.randn(n_rows, n_out)
    made = [pack(torch.randn(r, n_in), parts_of(torch.randn(n_out, r), n_out)) for r in (3, 16, 65)]
    owners = [i * 7 % 4 for i in range(n_rows)]  # 3 is none
    runs = [(made[i], [row for row in range(n_rows) if owners[row] == i]) for i in range(3)]
    together = before.clone()
    adapt(kernels, Rows(*runs), x, together, **options)
    for row, owner in enumerate(owners):
        alone = before[row : row + 1].clone()
        if owner < 3:
            adapt(kernels, Rows((made[owner], [0])), x[row : row + 1], alone, **options)
        assert torch.equal(alone[0], together[row])


def test_threads_do_not_change_bits(kernels: Kernels) -> None:
    torch.manual_seed(0)
    packed = pack(torch.randn(48, 576), parts_of(torch.randn(960, 48), 960))
    x, results = torch.randn(150, 576), []
    before = native.use_threads(1)
    try:
        for n in (1, 2, 5):
            native.use_threads(n)
            results.append(torch.zeros(150, 960))
            adapt(kernels, Rows((packed, [*range(0, 150, 3)]), (packed, [*range(1, 150, 3)])), x, results[-1])
    finally:
        native.use_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_layout() -> None:
    """Ranks 0..2 for outputs 0..17, rank 3 for 18..19: the second block of 16 outputs has both parts."""
    b = torch.arange(1.0, 55.0).view(18, 3)
    packed = pack(torch.ones(4, 5), [(0, 0, b), (18, 3, torch.tensor([[90.0], [91.0]]))])
    assert (packed.record.rank, packed.record.n_groups, packed.record.n_blocks) == (8, 1, 2)
    assert packed.begins.tolist() == [0, 2, 4]
    assert packed.firsts.tolist() == [0, 0]
    assert packed.b[0, :3].tolist() == [[1, 2], [4, 5], [7, 8]]
    assert packed.b[1, :3].tolist() == [[3, 0], [6, 0], [9, 0]]
    assert packed.b[2, :5].tolist() == [[49, 50], [52, 53], [0, 0], [0, 0], [0, 0]]
    assert packed.b[3, :5].tolist() == [[51, 0], [54, 0], [0, 90], [0, 91], [0, 0]]
    assert packed.a.sum() == 20


def test_matrices_in_one_piece_are_the_same() -> None:
    made = [pack(torch.randn(3, 40), parts_of(torch.randn(20, 3), 20)) for _ in range(3)]
    moved = adjacent(made)
    assert all(
        torch.equal(one.a, other.a) and torch.equal(one.b, other.b) for one, other in zip(made, moved, strict=True)
    )
    assert [one.record.a for one in moved] == [one.a.data_ptr() for one in moved]
    assert moved[2].b.data_ptr() - moved[0].a.data_ptr() < 3 * (one_size(made[0]) + 128)
    assert not adjacent([])


def one_size(packed: PackedLowRank) -> int:
    return packed.a.nbytes + packed.b.nbytes


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    rows = Rows((pack(torch.ones(1, 8), [(0, 0, torch.ones(4, 1))]), [0]))
    with pytest.raises(ValueError, match=r"cannot add \[2, 4\] to \[1, 4\]"):
        adapt(kernels, rows, torch.ones(2, 8), torch.zeros(1, 4))
