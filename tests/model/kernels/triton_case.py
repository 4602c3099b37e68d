"""Shared by the tests of Triton's kernels: poisoned memory, small tiles, weights in every layout."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from model.checkpoint.stored import Stored
from model.kernels.cuda.layouts import DeviceWeights
from model.linear.floats import WeightsOnly
from model.linear.schemes import SCHEMES
from model.linear.selection import PROJECTIONS

if TYPE_CHECKING:
    from model.kernels.cuda.product import Tile

CPU = torch.device("cpu")
NAMES = {row.layout: row.name for row in SCHEMES.values() if row.value_bits is not None and not row.compiled}
"""Schemes by the layout of their weights."""
LAYOUTS = ("plain", *NAMES)


SMALL = {"plain": (16, 64), "fp8": (16, 32), "int4": (16, 128)}
"""Outputs and channels of tiles for small shapes."""


def small_tiles() -> dict[str, tuple["Tile", ...]]:
    """Tiles in place of `product.TILES`. The interpreter computes every value of a tile, also beyond the edges."""
    from model.kernels.cuda.product import TILES

    return {
        layout: tuple(replace(tile, outputs=outputs, channels=channels) for tile in TILES[layout])
        for layout, (outputs, channels) in SMALL.items()
    }


def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN, or the largest integers: what is read before it is written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def weights_of(layout: str, matrix: Tensor, dtype: torch.dtype = torch.float32) -> tuple[DeviceWeights, Tensor]:
    """A matrix [n_out, n_in] float32 in a layout, and its dequantized values in float32."""
    if layout == "plain":
        return DeviceWeights(layout, matrix.to(dtype)), matrix.to(dtype).float()
    layer = PROJECTIONS[NAMES[layout]](matrix.shape[1], len(matrix))
    assert isinstance(layer, WeightsOnly)
    weights = layer.allocate((), dtype, CPU)
    layer.assign_weights(weights)
    layer.take(0, Stored(matrix))
    return weights, layer.dequantize(weights, slice(0, len(matrix)))


def stacked(parts: list[DeviceWeights]) -> DeviceWeights:
    """The weights of several matrices, stacked into one."""
    tables = zip(*(part.tables for part in parts), strict=True)
    return DeviceWeights(parts[0].layout, torch.stack([part.values for part in parts]), tuple(map(torch.stack, tables)))


def close(found: Tensor, expected: Tensor) -> None:
    """Check that the error is within the precision of `found`. The interpreter truncates float32 to bfloat16."""
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[found.dtype], error


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
