"""Copies of pages."""

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
