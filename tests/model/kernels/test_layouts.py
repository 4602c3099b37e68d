"""What products promise in every layout of weights and every variant of the kernels: bits, norms, gates, packing."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from model.kernels.cpu import check, packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cpu.records import FORMATS
from tests.model import records

EMPTY: dict[str, Callable[[int, int], PackedWeights]] = {"int8": packed.int8, "bfloat16": packed.bfloat16}
"""The layouts of floats: they take any number of channels, and the kernels round weights for them."""
KINDS = ("plain", "normed", "gated")


def rounded(kernels: Kernels, layout: str, weight: Tensor) -> PackedWeights:
    made = EMPTY[layout](*weight.shape)
    kernels.quantize(made, 0, weight)
    return made


def inputs(kind: str, n_rows: int, n_in: int) -> tuple[Tensor, dict[str, object]]:
    """Random rows, and the options of a product that takes them."""
    x = torch.randn(n_rows, n_in * (2 if kind == "gated" else 1)) * 3
    return x, {"norm": torch.rand(n_in), "eps": 1e-5} if kind == "normed" else {"gated": kind == "gated"}


def same_bits(kernels: Kernels, weights: PackedWeights, kind: str, n_rows: int) -> None:
    x, options = inputs(kind, n_rows, weights.n_in)
    whole = kernels.linear(weights, x, **options)  # type: ignore[arg-type]
    for n in (1, 2, 3, 4, 8, 15, 33):
        assert torch.equal(kernels.linear(weights, x[:n], **options), whole[:n])  # type: ignore[arg-type]
        assert torch.equal(kernels.linear(weights, x[7 : 7 + n], **options), whole[7 : 7 + n])  # type: ignore[arg-type]
    onto = torch.randn(33, weights.n_out)
    expected = onto + whole[:33]
    assert torch.equal(kernels.linear(weights, x[:33], onto=onto, **options), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gives_the_same_bits_beside_any_others(kernels: Kernels, layout: str, kind: str) -> None:
    same_bits(kernels, check.weights(kernels, layout, whole=False), kind, 150)


@pytest.mark.parametrize("layout", EMPTY)
@pytest.mark.parametrize(("n_out", "n_in", "n_rows"), [(40, 100, 50), (1030, 64, 512)])
def test_bits_of_incomplete_groups_and_of_results_beyond_a_cache(
    kernels: Kernels, layout: str, n_out: int, n_in: int, n_rows: int
) -> None:
    """512 rows of 1030 outputs are more than 2 MiB, which tiles prefetch before they store them."""
    for kind in KINDS:
        same_bits(kernels, rounded(kernels, layout, torch.randn(n_out, n_in)), kind, n_rows)


@pytest.mark.parametrize(("layout", "step"), [("int8", 0.501 / 127), ("bfloat16", 2**-8 * 1.01)])
def test_norm_and_gate_are_those_of_pytorch(kernels: Kernels, layout: str, step: float) -> None:
    """With unit weights the products are the rounded rows: within half a step of a row's greatest value."""
    unit = rounded(kernels, layout, torch.eye(64))
    x, scale, pair = torch.randn(9, 64) * 5, torch.rand(64), torch.randn(9, 128) * 30
    for found, expected in (
        (kernels.linear(unit, x, norm=scale, eps=1e-5), rms_norm(x, (64,), None, 1e-5) * scale),
        (kernels.linear(unit, pair, gated=True), silu(pair[:, :64]) * pair[:, 64:]),
        (kernels.linear(unit, x, onto=torch.ones(9, 64)) - 1, x),
    ):
        assert ((found - expected).abs() <= expected.abs().amax(1, keepdim=True) * step + 1e-6).all()


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_input_that_is_no_number_gives_no_number(kernels: Kernels, layout: str, bad: float) -> None:
    x = torch.randn(20, check.N_IN)
    x[7, 100] = bad
    finite = kernels.linear(check.weights(kernels, layout, whole=False), x).isfinite()
    assert not finite[7].any()
    assert finite.sum() == 19 * check.N_OUT


# Packing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_out", "n_in", "cuts"), [(1, 3, ()), (17, 65, (5,)), (48, 576, (16, 40)), (100, 130, (1,))])
@pytest.mark.parametrize("layout", EMPTY)
def test_rows_become_the_bytes_of_pytorch(
    kernels: Kernels, layout: str, dtype: torch.dtype, n_out: int, n_in: int, cuts: tuple[int, ...]
) -> None:
    weight = torch.randn(n_out, n_in).to(dtype)
    weight[0, :3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -0.0])  # to even, down and up
    if n_out > 1:
        weight[1] = 0
    made = EMPTY[layout](n_out, n_in)
    for first, stop in zip((0, *cuts), (*cuts, n_out), strict=True):
        kernels.quantize(made, first, weight[first:stop])
    if layout == "bfloat16":
        expected = records.bfloat16(weight.bfloat16(), neighbours=kernels.variant == "amx")
        assert torch.equal(made.packed, expected)
        return
    quantized = records.int8(*records.quantize(weight))
    assert torch.equal(made.packed, quantized.packed)
    assert torch.equal(made.scales, quantized.scales)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", EMPTY)
def test_values_that_are_not_finite_are_refused(kernels: Kernels, layout: str, bad: float, dtype: torch.dtype) -> None:
    for column in (0, 99):
        weight = torch.randn(20, 100).to(dtype)
        weight[7, column] = bad
        with pytest.raises(ValueError, match="not finite"):
            rounded(kernels, layout, weight)


def test_values_beyond_bfloat16_are_refused(kernels: Kernels) -> None:
    rounded(kernels, "bfloat16", torch.full((1, 1), 3.39e38))
    with pytest.raises(ValueError, match="not finite"):
        rounded(kernels, "bfloat16", torch.full((1, 1), 3.4e38))


def test_rows_beyond_the_end_are_refused(kernels: Kernels) -> None:
    for first, shape in ((1, (20, 64)), (-1, (4, 64)), (0, (4, 65))):
        with pytest.raises(ValueError, match="are not in 20 of 64"):
            kernels.quantize(packed.int8(20, 64), first, torch.zeros(shape))


@pytest.mark.parametrize("kind", records.KINDS)
@pytest.mark.parametrize(("n_out", "cuts"), [(16, ()), (80, (5, 37))])
def test_blocks_are_permuted(kernels: Kernels, kind: str, n_out: int, cuts: tuple[int, ...]) -> None:
    parts = records.random_blocks(kind, n_out, 3)
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
    found = records.packed(kernels, *records.random_blocks("q4", 50, 3)).packed
    assert not found[-1].view(3, -1, 16, 2)[:, -1, 2:].any()  # the scales
