"""A network in the compiled kernels: one call computes a step, from token ids to sampled tokens."""

import ctypes
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.paged import PagedAttention, cells_at
from model.attention.rope import RopeTables
from model.batch import Slice
from model.kernels.cpu import records
from model.kernels.cpu.packed import PackedLatent
from model.kernels.cpu.records import floats, struct
from model.network.feed_forward import FeedForward
from model.network.latent import LatentAttention
from model.network.lora import Lora
from model.network.transformer import Block, Transformer


class CompiledNetwork:
    """`model` over `pools`; see `compiled_network`. Logits are computed for `block_rows` rows at once."""

    def __init__(
        self, model: Transformer, attention: PagedAttention, pools: PagePools, tables: RopeTables, block_rows: int
    ) -> None:
        self._kernels = attention.kernels
        self._model = model
        self._block_rows = block_rows
        self.has_head, self.samples = model.has_head, model.has_head and not model.splits_layers
        self._head = model.output.packed if model.has_head else None
        self._layers = (struct("layer") * len(model.layers))(
            *(
                _layer(block, cache.k, pool)  # type: ignore[arg-type]
                for block, cache, pool in zip(model.layers, pools.layers, pools.pool_of_layer, strict=True)
            )
        )
        self._pools = (struct("pool_t") * len(model.config.pool_windows))(
            *(
                _pool(window, tables, index)
                for window, index in zip(model.config.pool_windows, tables.table_of_pool, strict=True)
            )
        )
        self._network = self._record(pools, tables)
        self._owners = (pools, tables)  # keep alive the memory that the records point to

    def step(
        self,
        slices: Sequence[Slice],
        counts: Sequence[int],
        sampling: NDArray[np.void] | None,
        adapters: Sequence[Lora | None] = (),
        embedded: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute hidden states [T, dim] after the last layer, and tokens for the last `counts[i]` rows of slice i.

        `sampling` has a row for each of these tokens; without it none is sampled. `adapters` has one for each slice.
        `embedded` are rows [n] and the embeddings [n, dim] of images or audio in them. A stage of a pipeline receives
        its input. Ranks that share layers join after each attention and each feed-forward.
        Raises ValueError for what the network or a table of pages does not have, MemoryError without memory to sample.
        """
        x, tokens = self._input(slices)
        part = torch.empty_like(x) if self._model.splits_layers else None
        distinct = dict.fromkeys(one for one in adapters if one is not None)
        index: dict[Lora | None, int] = {one: i for i, one in enumerate(distinct)}
        columns, pages = _columns(slices, counts, [index.get(one, -1) for one in adapters] or [-1] * len(slices))
        targets = [one.targets for one in distinct]
        adapter = struct("adapter_t")
        entries = (adapter * len(targets))(
            *(adapter(targets=ctypes.addressof(one.records), rank=one.rank) for one in targets)
        )
        rows, values = (None, None) if embedded is None else (embedded[0], embedded[1].float().contiguous())
        n_samples = 0 if sampling is None else len(sampling)
        sampled = torch.empty(n_samples, dtype=torch.int64, device="cpu")
        step = struct("step_t")(
            slices=columns.buffer_info()[0],
            tokens=None if tokens is None else tokens.buffer_info()[0],
            pages=pages.buffer_info()[0],
            sampling=None if sampling is None else sampling.ctypes.data,
            adapters=ctypes.addressof(entries),
            embedded_rows=None if rows is None else records.pointer("embedded_rows", rows, torch.int64),
            embedded=None if values is None else floats("embedded", values),
            x=floats("x", x),
            sampled=records.pointer("sampled", sampled, torch.int64),
            part=None if part is None else floats("part", part),
            n_slices=len(slices),
            n_adapters=len(targets),
            n_embedded_rows=0 if rows is None else len(rows),
            block_rows=self._block_rows,
        )
        self._kernels.step(self._network, step, None if part is None else partial(self._model.join, x, part))
        self._model.send(x)
        return x, sampled

    def _input(self, slices: Sequence[Slice]) -> "tuple[Tensor, array[int] | None]":
        """Return x [T, dim], and the tokens that the kernels look up there; None if x has the layers' input already."""
        model, n_rows = self._model, sum([item.stop - item.start for item in slices])
        x = model.receive(n_rows)
        if x is not None:
            return x, None
        tokens = _tokens(slices)
        if model.splits_layers:
            return model.look_up(torch.frombuffer(tokens, dtype=torch.int64)).float(), None
        return torch.empty(n_rows, model.config.dim, dtype=torch.float32, device="cpu"), tokens

    def _record(self, pools: PagePools, tables: RopeTables) -> Any:
        model, config = self._model, self._model.config
        heads = config.heads
        embeddings = model.tok_embeddings.weight if model.has_embeddings else None
        return struct("network_t")(
            embeddings=None if embeddings is None else records.pointer("embeddings", embeddings, *records.FLOAT_KINDS),
            layers=ctypes.addressof(self._layers),
            pools=ctypes.addressof(self._pools),
            norm=floats("norm", model.norm.weight) if model.has_head else None,
            head=None if self._head is None else ctypes.addressof(self._head.record),
            n_layers=len(self._layers),
            n_pools=len(self._pools),
            n_positions=len(tables.tables[0]),
            n_tokens=0 if embeddings is None else len(embeddings),
            dim=config.dim,
            hidden_dim=config.hidden_dim,
            n_heads=heads.n_heads,
            n_kv_heads=heads.n_groups,
            head_dim=heads.head_dim,
            latent=heads.latent,
            kind=records.CELL_KINDS[pools.layers[0].k.dtype],
            embedding_kind=0 if embeddings is None else records.FLOAT_KINDS[embeddings.dtype],
            eps=config.norm_eps,
        )


def compiled_network(
    model: Transformer, attention: Attention, pools: PagePools, tables: RopeTables, block_rows: int
) -> CompiledNetwork | None:
    """Return the network if the kernels compute all of it, else None."""
    if not isinstance(attention, PagedAttention):
        return None
    parts = [part for block in model.layers for part in _parts(block)]  # type: ignore[arg-type]
    heads = [model.output.packed] if model.has_head else []
    if any(part is None for part in (*parts, *heads)):
        return None
    return CompiledNetwork(model, attention, pools, tables, block_rows)


def _tokens(slices: Sequence[Slice]) -> "array[int]":
    tokens = array("q")
    for item in slices:
        if item.stop - item.start == 1:
            tokens.append(item.tokens[item.start])
        else:
            tokens.extend(item.tokens[item.start : item.stop])
    return tokens


def _columns(
    slices: Sequence[Slice], counts: Sequence[int], adapters: Sequence[int]
) -> "tuple[array[int], array[int]]":
    """Return `slices` and `pages` of step.h."""
    columns, pages = array("q"), array("q")
    for item, n, adapter in zip(slices, counts, adapters, strict=True):
        columns.extend((item.start, item.stop, n, adapter))
        for table in item.tables:
            columns.extend((table.first_block, len(table.pages)))
    for pool in range(len(slices[0].tables)):
        for item in slices:
            pages.extend(item.tables[pool].pages)
    return columns, pages


def _parts(block: Block) -> list[Any]:
    """Return attention, wo, and w13 and w2 or all experts, in the kernels' layout; None for one without this layout.

    Attention is wqkv, or all of latent attention before wo.
    """
    feed_forward, attention = block.feed_forward, block.attention
    dense = isinstance(feed_forward, FeedForward)
    first = attention if isinstance(attention, LatentAttention) else attention.wqkv
    last = [feed_forward.w13, feed_forward.w2] if dense else [feed_forward]
    return [part.packed for part in (first, attention.wo, *last)]


def _layer(block: Block, k: Tensor, pool: int) -> Any:
    norms = {name: floats(name, getattr(block, name).weight) for name in ("attention_norm", "ffn_norm")}
    parts = _parts(block)
    last = ("w13", "w2") if len(parts) == 4 else ("experts",)
    names = ("latent" if isinstance(parts[0], PackedLatent) else "wqkv", "wo", *last)
    records = {name: ctypes.addressof(part.record) for name, part in zip(names, parts, strict=True)}
    return struct("layer")(cells=cells_at(k), pool=pool, **norms, **records)


def _pool(window: int | None, tables: RopeTables, index: int) -> Any:
    factors = None if tables.q_factors is None else floats("q_factors", tables.q_factors)
    return struct("pool_t")(rotations=floats("rotations", tables.tables[index]), q_factors=factors, window=window or 0)
