"""Copies of pages, to other pages and to bytes."""

import pytest
import torch

from model.attention.cache import LayerCache, PagePools
from model.batch import PageCopy, PoolSpec
from tests.model.driving import tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_copied_page_has_the_same_bytes_and_no_other_page_changes(dtype: torch.dtype) -> None:
    config = tiny((8, None, 8), head_dim=6, n_kv_heads=2)
    pools = PagePools.allocate(
        config,
        (PoolSpec(8, 3), PoolSpec(None, 3)),
        lambda shape: LayerCache(*(torch.empty(*shape, dtype=dtype) for _ in range(2))),
    )
    tensors = [pages.view(torch.uint8) for layer in pools.layers for pages in (layer.k, layer.v)]
    for pages in tensors:
        pages.random_(256)
    before = [pages.clone() for pages in tensors]
    pools.copy_pages([PageCopy(0, 2, 0), PageCopy(1, 0, 1), PageCopy(0, 0, 1)])
    for n, (old, new) in enumerate(zip(before, tensors, strict=True)):
        sources = [0, 0, 2] if pools.pool_of_layer[n // 2] else [2, 2, 2]
        assert torch.equal(new, old[sources])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("order", ["positions", "heads", "both"])
def test_a_page_that_comes_back_from_bytes_is_the_same_in_each_layer_of_its_pool(
    dtype: torch.dtype, order: str
) -> None:
    """In the layouts of sdpa, of triton, and of paged. No other page changes."""

    def layer(shape: tuple[int, int, int]) -> LayerCache:
        n_pages, n_heads, width = shape
        if order == "positions":
            return LayerCache(*(torch.empty(n_pages, 4, n_heads, width, dtype=dtype) for _ in range(2)))
        if order == "heads":
            halves = (torch.empty(n_pages, n_heads, 4, width, dtype=dtype).transpose(1, 2) for _ in range(2))
            return LayerCache(*halves)
        both = torch.empty(n_pages, 2, 4, n_heads, width, dtype=dtype)
        return LayerCache(both[:, 0], both[:, 1])

    config = tiny((8, None, 8), head_dim=6, n_kv_heads=2)
    pools = PagePools.allocate(config, (PoolSpec(8, 3), PoolSpec(None, 3)), layer)
    tensors = [pages for layer in pools.layers for pages in (layer.k, layer.v)]
    for pages in tensors:
        pages.view(torch.uint8).random_(256)
    before = [pages.clone().view(torch.uint8) for pages in tensors]
    data = memoryview(bytearray(pools.read(0, 2)()))
    assert len(data) == pools.page_bytes(0) == 2 * 2 * 4 * 2 * 6 * dtype.itemsize
    pools.write(0, 1, data)
    for n, (old, pages) in enumerate(zip(before, tensors, strict=True)):
        sources = [0, 1, 2] if pools.pool_of_layer[n // 2] else [0, 2, 2]
        assert torch.equal(pages.clone().view(torch.uint8), old[sources])
