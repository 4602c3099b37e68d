"""Sizes of Triton attention by arithmetic: grids and scratch of captured steps, and tiles for every GPU."""

import pytest

from model.attention.inputs import Span
from model.attention.tiles import SPLIT, Gpu, bounds, load_of, scratch_bytes, tiles_of
from model.batch import PAGE_SIZE
from model.kernels.cuda.limits import SHARED_BYTES, shared_bytes

H100, L4 = Gpu((9, 0), 132), Gpu((8, 9), 58)
MISTRAL = (32, 8, 128)
"""n_heads, n_kv_heads, head_dim of Mistral 7B."""
LONG = 128 * 1024


@pytest.mark.parametrize(("n_slices", "n_items"), [(1, 83), (32, 83), (256, 512)])
def test_scratch_of_a_captured_step_does_not_grow_with_its_sequences(n_slices: int, n_items: int) -> None:
    """132 SMs x 5 programs / 8 key heads = 82.5 items; sums of 32 heads of 128 + 2 values of 4 bytes."""
    sums = n_items * (32 * 130 * 4 + 8 * 8)
    assert [scratch_bytes(n_slices, length, None, MISTRAL, H100) for length in (LONG, 2**20)] == [sums] * 2
    assert sums < 9e6
    assert scratch_bytes(n_slices, LONG, None, MISTRAL, L4) <= sums


def span(start: int, n_queries: int, first_key: int = 0) -> Span:
    return Span(0, n_queries, start, first_key, 0)


def test_every_slice_has_an_item_and_every_query_a_sum() -> None:
    for n_slices, n_queries in ((1, 1), (300, 1), (40, 16), (1, 16)):
        load = load_of([span(10**6, n_queries)] * n_slices)
        n_items, n_sums = bounds(load, Gpu((8, 0), 1), 8, -(-n_queries // 4))
        assert n_items >= n_slices
        assert n_sums >= n_slices * n_queries


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(
    ("padded", "itemsize", "kv_itemsize"),
    [
        *((padded, *sizes) for padded in (16, 64, 128, 256) for sizes in ((2, 2), (2, 1), (4, 4), (4, 1))),
        *((512, *sizes) for sizes in ((2, 2), (2, 1))),
    ],
)
def test_tiles_fit_and_fetch_ahead(capability: tuple[int, int], padded: int, itemsize: int, kv_itemsize: int) -> None:
    """Two blocks fetched ahead, and the queries, are within shared memory. Compilation says what else there is.

    Latents of 512 values fit in 16 bits; in float32 they may leave a small card to sdpa.
    """
    for kind in ("parts", "whole"):
        rows, keys, _, stages = tiles_of(kind, Gpu(capability, 1), padded, itemsize, kv_itemsize)  # type: ignore[arg-type]
        assert stages >= 3
        assert (stages - 1) * keys * 2 * padded * kv_itemsize + rows * padded * itemsize <= shared_bytes(capability)
        assert SPLIT % keys == 0
        assert SPLIT % PAGE_SIZE == 0
        assert keys >= 16
