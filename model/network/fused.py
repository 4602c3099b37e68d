"""All layers of a network in one call of the compiled kernels instead of five a layer, with the same bits."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.paged import PagedAttention, Prepared, cells_at, point_to
from model.attention.rope import RopeRows
from model.kernels.cpu import native, records
from model.kernels.cpu.packed import PackedExperts
from model.network.feed_forward import FeedForward
from model.network.lora import StepAdapters
from model.network.moe import MoE
from model.network.transformer import Block, Transformer


class FusedLayers:
    """The layers of `model` over the pages of `pools`; see `fuse`."""

    def __init__(self, model: Transformer, attention: PagedAttention, pools: PagePools) -> None:
        kernels = native.kernels()
        assert kernels is not None
        self._kernels = kernels
        self.attention = attention
        self._config = model.config
        self._cache_dtype = pools.layers[0].k.dtype
        self._owners = (model, pools)  # keep alive the memory that the layers point to
        parts = [part for block in model.layers for part in _parts(block)]  # type: ignore[arg-type]
        products = [part for part in parts if not isinstance(part, PackedExperts)]
        self._products = {(part.n_in, part.record.format): part for part in products}.values()
        self._experts = [part for part in parts if isinstance(part, PackedExperts)]
        self.layers = (records.Layer * len(model.layers))(
            *(
                _layer(block, cache.k, pool)  # type: ignore[arg-type]
                for block, cache, pool in zip(model.layers, pools.layers, pools.pool_of_layer, strict=True)
            )
        )

    def __call__(
        self, x: Tensor, ropes: Sequence[RopeRows], prepared: Sequence[Prepared], adapters: StepAdapters | None = None
    ) -> Tensor:
        """x [T, dim] float32 after all layers, in place; each pool has its rope and its `prepared`."""
        config = self._config
        n_rows, n_heads = len(x), config.n_heads
        shape = (n_rows, n_heads + 2 * config.n_kv_heads, config.head_dim)
        qkv, gate_up = x.new_empty(shape), x.new_empty(n_rows, 2 * config.hidden_dim)
        out = x.new_empty(n_rows, n_heads, config.head_dim)
        calls = [self.attention.call(pool, shape, n_heads, self._cache_dtype) for pool in prepared]
        for call, rope in zip(calls, ropes, strict=True):
            point_to(call, qkv, out, rope)
        pools = (records.AttentionCall * len(calls))(*calls)
        rows = None if adapters is None else adapters.packed()
        self._kernels.network(self.layers, pools, x, config.norm_eps, gate_up, rows, self.scratch_bytes(n_rows))
        return x

    def scratch_bytes(self, n_rows: int) -> int:
        """Bytes of scratch memory of the layers for the rows."""
        products = [part.scratch_bytes(n_rows) for part in self._products]
        return max(products + [self._kernels.experts_scratch(part, n_rows) for part in self._experts])


def fuse(model: Transformer, attention: Attention, pools: PagePools) -> FusedLayers | None:
    """The fused layers of a model if all its projections and its attention run in the kernels, else None.

    Ranks that share layers have to add up their parts in between.
    """
    if not isinstance(attention, PagedAttention) or model.splits_layers:
        return None
    packed = all(part is not None for block in model.layers for part in _parts(block))  # type: ignore[arg-type]
    return FusedLayers(model, attention, pools) if packed else None


def _experts(block: Block) -> PackedExperts | None:
    return block.feed_forward.packed if isinstance(block.feed_forward, MoE) else None


def _weights(block: Block) -> list[Any]:
    """wqkv, wo, and in a dense layer w13 and w2, in the layout of the kernels; None for one without this layout."""
    parts = [block.attention.wqkv, block.attention.wo]
    if isinstance(block.feed_forward, FeedForward):
        parts += [block.feed_forward.w13, block.feed_forward.w2]
    return [part.packed for part in parts]


def _parts(block: Block) -> list[Any]:
    """All weights of a layer, as `_weights`."""
    return [*_weights(block), *([_experts(block)] if isinstance(block.feed_forward, MoE) else [])]


def _layer(block: Block, k: Tensor, pool: int) -> records.Layer:
    weights = (block.attention_norm.weight, block.ffn_norm.weight)
    norms = [records.pointer("norm", weight, torch.float32) for weight in weights]
    addresses = [ctypes.addressof(part.record) for part in _parts(block)]
    wqkv, wo, *others = addresses
    feed_forward = (None, None, *others) if isinstance(block.feed_forward, MoE) else (*others, None)
    return records.Layer(*norms, wqkv, wo, *feed_forward, cells_at(k), pool)
