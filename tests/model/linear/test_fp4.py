"""Projections that get rows in 4-bit floats: they stay as they are, or become what the scheme makes of others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from model.checkpoint.stored import Stored
from model.kernels.cpu import native
from model.kernels.cpu.records import FORMATS
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from tests.model.fp4 import GROUPS, meant, random_fp4

pytestmark = pytest.mark.skipif(native.kernels() is None, reason="needs the compiled kernels")
COMPILED = [name for name, scheme in SCHEMES.items() if scheme.compiled]
OTHERS = {"bfloat16": "bfloat16", "int8": "int8", "int4": "q8"}
"""The layout of rows that do not stay as they are."""


def matrix(kind: str, n_out: int, n_in: int, factor: float = 0.02) -> Stored:
    codes, scales = random_fp4(kind, n_out, n_in)
    return Stored(codes, "fp4", scales, GROUPS[kind], factor=factor)


def weights(found: Stored) -> Tensor:
    assert found.scales is not None
    return torch.from_numpy(meant(found.values, found.scales, found.factor))


def made(scheme: str, n_in: int, *parts: tuple[int, Stored]) -> tuple[str, Compiled]:
    """The layout, and the projection of these parts, each at its first row."""
    projection = make_linear(n_in, sum(len(part) for _, part in parts), scheme=scheme)
    assert isinstance(projection, Compiled)
    for first, part in parts:
        projection.take(first, part)
    assert projection.packed is not None
    return FORMATS[projection.packed.record.format], projection


@pytest.mark.parametrize("kind", GROUPS)
def test_floats_are_those_of_the_definition(kind: str) -> None:
    found = matrix(kind, 30, 96, 1.0)
    assert found.shape == (30, 96)
    assert torch.equal(found.floats().double(), weights(found))
    rows = torch.randperm(30)
    assert torch.equal(found[rows].floats(), found.floats()[rows])
    assert torch.equal(found.columns(range(32, 96)).floats(), found.floats()[:, 32:])


@pytest.mark.parametrize("scheme", COMPILED)
@pytest.mark.parametrize("kind", GROUPS)
def test_every_scheme_keeps_them(scheme: str, kind: str) -> None:
    """In parts that come in any order, each with a factor of its own."""
    first, second = matrix(kind, 24, 96, 0.01), matrix(kind, 16, 96, 0.7)
    layout, projection = made(scheme, 96, (24, second), (0, first))
    assert layout == kind
    expected = torch.cat([weights(first), weights(second)]).float()
    np.testing.assert_allclose(projection(torch.eye(96)).T, expected, rtol=1e-6)
    assert projection.packed is not None
    n_bytes = 40 * 96 / 2 + 40 * 96 / GROUPS[kind] + 40 * 4
    stored = projection.packed
    assert stored.scales is not None
    assert (stored.packed.nbytes + stored.scales.nbytes) / n_bytes == 48 / 40  # whole blocks of 16 outputs


@pytest.mark.parametrize("scheme", COMPILED)
def test_beside_other_rows_they_become_what_the_scheme_makes_of_them(scheme: str) -> None:
    found, floats = matrix("nvfp4", 16, 96), Stored(torch.randn(24, 96) / 9)
    for parts in (((0, found), (16, floats)), ((24, found), (0, floats))):
        layout, projection = made(scheme, 96, *parts)
        assert layout == ("q8_min" if scheme == "int4" else OTHERS[scheme])  # floats alone have minima there
        first = parts[0][0]
        y = projection(torch.eye(96)).T[first : first + 16]
        assert (y - weights(found)).norm() / weights(found).norm() < 0.01


@pytest.mark.parametrize("scheme", ["bfloat16", "int8"])
def test_a_width_of_half_a_group_becomes_what_the_scheme_makes_of_it(scheme: str) -> None:
    found = matrix("nvfp4", 32, 48)
    layout, projection = made(scheme, 48, (0, found))
    assert layout == OTHERS[scheme]
    assert (projection(torch.eye(48)).T - weights(found)).norm() / weights(found).norm() < 0.01


def test_both_kinds_in_one_projection_become_what_the_scheme_makes_of_them() -> None:
    assert made("int8", 96, (0, matrix("nvfp4", 16, 96)), (16, matrix("mxfp4", 16, 96)))[0] == "int8"


@pytest.mark.parametrize("kind", GROUPS)
def test_parts_of_the_channels_stay_as_they_are(kind: str) -> None:
    """Those of whole groups; others are decoded."""
    found = matrix(kind, 32, 192)
    own = found.part(columns=range(64, 128))
    assert own.is_whole
    layout, projection = made("int8", 64, (0, own))
    assert layout == kind
    np.testing.assert_allclose(projection(torch.eye(64)).T, weights(found)[:, 64:128].float(), rtol=1e-6)
    odd = found.part(columns=range(40, 104))
    assert torch.equal(odd.floats(), found.floats()[:, 40:104])
    assert made("int8", 64, (0, odd))[0] == "int8"


@pytest.mark.parametrize(
    ("kind", "byte"), [("nvfp4", 0x7F), ("nvfp4", 0x81), ("nvfp4", 0xFF), ("mxfp4", 0xFD), ("mxfp4", 0xFF)]
)
def test_damaged_scales_are_refused(kind: str, byte: int) -> None:
    found = matrix(kind, 16, 64)
    assert found.scales is not None
    found.scales[3, 1] = byte
    with pytest.raises(ValueError, match="a scale is not finite"):
        made("int8", 64, (0, found))
    with pytest.raises(ValueError, match="a scale is not finite"):
        found.floats()


@pytest.mark.parametrize("factor", [3.3e35, 1e39])
def test_a_factor_with_which_values_are_not_finite_is_refused(factor: float) -> None:
    found = replace(matrix("nvfp4", 16, 64), factor=factor)
    for use in (lambda: made("int8", 64, (0, found)), found.floats):
        with pytest.raises(ValueError, match=r"its global factor .* is too large"):
            use()


def test_the_largest_exponent_is_a_number() -> None:
    found = matrix("mxfp4", 16, 64)
    assert found.scales is not None
    found.scales[:] = 252
    assert found.floats().isfinite().all()
