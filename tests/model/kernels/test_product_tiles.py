"""The tiles of products: what compilers make of them for GPUs that are not there, and how often they read x."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.cuda.limits import shared_bytes
from model.kernels.cuda.product import TILES, WARPS, channels_of, splits_of, tile_of
from model.kernels.groups import INT4_GROUP
from tests.model.kernels import compiling
from tests.model.kernels.compiling import Compiled

WGMMA, MMA, TCGEN05 = "wgmma.mma_async", "mma.sync", "tcgen05.mma"
UNITS = {80: MMA, 89: MMA, 90: WGMMA, 100: TCGEN05, 120: MMA}
"""The instructions of the tensor cores, by compute capability."""


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    return compiling.compiled("products")


def test_all_compile_within_shared_memory(compiled: list[Compiled]) -> None:
    assert not [one for one in compiled if one.error]
    assert all(one.shared <= shared_bytes(divmod(one.capability, 10)) for one in compiled)
    assert {"_product", "_shrink", "_expand", "_to_fp8", "_widen", "_widen_groups"} <= {one.kernel for one in compiled}


def test_products_use_the_tensor_cores_of_each_gpu(compiled: list[Compiled]) -> None:
    """On 9.0 wgmma, with all warps of a group and the rows of a tile: no product falls back to mma.sync."""
    for one in (one for one in compiled if one.kernel == "_product"):
        found = {name for name in (WGMMA, MMA, TCGEN05) if (one.instructions or {})[name]}
        assert found == {UNITS[one.capability]}, one


def test_products_copy_ahead(compiled: list[Compiled]) -> None:
    """No wait in a loop is for the copies that the loop has just requested."""
    for one in (one for one in compiled if one.kernel == "_product"):
        assert one.pending, one
        assert min(one.pending) > 0, one


BYTES = {"plain": 2.0, "fp8": 1.0, "int4": 0.5}
SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate/up": (14336, 4096),
    "down": (4096, 14336),
    "head": (32768, 4096),
}
"""Outputs and channels of a Mistral 7B. Each output of gate/up stands for two rows of weights."""


@pytest.mark.parametrize("n_rows", [1, 16, 32, 64, 256])
@pytest.mark.parametrize("name", SHAPES)
def test_few_outputs_still_keep_a_device_busy(name: str, n_rows: int) -> None:
    """Sums that programs leave for each other are at most twice the bytes of the weights, and stay in the L2 cache."""
    n_out, n_in = SHAPES[name]
    for layout in TILES:
        tile = tile_of(layout, n_rows, fixed=False)
        blocks = -(-n_rows // tile.rows)
        splits = splits_of(tile, blocks, n_out, n_in)
        assert blocks * -(-n_out // tile.outputs) * tile.warps * splits >= WARPS
        left = 4 * n_rows * n_out * splits if splits > 1 else 0
        assert left <= 2 * n_out * n_in * BYTES[layout]
        assert left <= 2**24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_steps_have_whole_groups(dtype: torch.dtype) -> None:
    for tile in TILES["int4"]:
        channels = channels_of("int4", tile, dtype)
        assert channels
        assert channels % INT4_GROUP == 0
