"""The pools' shapes and slot arithmetic."""

import pytest
import torch

from model.attention.cache import LayerCache, PagePools
from model.batch import PageCopy, PoolSpec
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import CPU, tiny


def bfloat16(shape: tuple[int, int, int]) -> LayerCache:
    return ReferenceAttention().allocate(shape, torch.bfloat16, CPU)


def test_layers_share_a_pool_size_by_window() -> None:
    config = tiny((8, None, 8), head_dim=6, n_kv_heads=2)
    pools = PagePools.allocate(config, (PoolSpec(8, 3), PoolSpec(None, 5)), bfloat16)
    assert pools.pool_of_layer == (0, 1, 0)
    assert [tuple(layer.k.shape) for layer in pools.layers] == [(3, 32, 2, 6), (5, 32, 2, 6), (3, 32, 2, 6)]
    assert {tensor.dtype for layer in pools.layers for tensor in (layer.k, layer.v)} == {torch.bfloat16}


def test_each_layer_has_memory_of_its_own() -> None:
    pools = PagePools.allocate(tiny((None, None)), (PoolSpec(None, 2),), bfloat16)
    pointers = {tensor.data_ptr() for layer in pools.layers for tensor in (layer.k, layer.v)}
    assert len(pointers) == 4


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


def test_slot_is_page_times_size_plus_offset() -> None:
    cache = LayerCache(torch.zeros(3, 4, 1, 2), torch.zeros(3, 4, 1, 2))
    k = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    cache.write(torch.tensor([11, 0]), k, -k)
    assert cache.k[2, 3, 0].tolist() == [1.0, 2.0]
    assert cache.v[0, 0, 0].tolist() == [-3.0, -4.0]
    assert cache.k.count_nonzero() == 4
