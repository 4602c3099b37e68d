"""A whole step of text in one call of the compiled kernels, from token ids to sampled tokens."""

import ctypes
from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.attention import paged
from model.attention.cache import PagePools
from model.attention.rope import RopeTables
from model.batch import Slice
from model.kernels.cpu import native, records
from model.kernels.cpu.packed import PackedWeights
from model.network.fused import FusedLayers
from model.network.transformer import Transformer


class WholeSteps:
    """The steps of `model` over `pools`; see `whole_steps`. Logits are computed for `block_rows` rows at once."""

    def __init__(
        self, model: Transformer, layers: FusedLayers, pools: PagePools, tables: RopeTables, block_rows: int
    ) -> None:
        kernels = native.kernels()
        assert kernels is not None
        assert model.output.packed is not None
        self._kernels = kernels
        self._layers = layers
        self._dim = model.config.dim
        self._head = model.output.packed
        self._block_rows = block_rows
        self._pools = (records.PoolRecord * len(model.config.pool_windows))(
            *(
                _pool(window, tables, index)
                for window, index in zip(model.config.pool_windows, tables.table_of_pool, strict=True)
            )
        )
        self._network = _network(model, layers, self._head, self._pools, pools, tables)
        self._owners = (model, pools, tables)  # keep alive the memory that the records point to

    def __call__(
        self, slices: Sequence[Slice], counts: Sequence[int], sampling: NDArray[np.void] | None
    ) -> tuple[Tensor, Tensor] | None:
        """Hidden states [T, dim] after the last layer, and a token for each of the last `counts[i]` rows of slice i.

        `sampling` are SAMPLING of all these tokens; without it none is sampled. No slice has an image or an adapter.
        Returns None for a step that is refused, or without memory.
        """
        columns, tokens, pages = _packed(slices, counts)
        n_samples = 0 if sampling is None else len(sampling)
        x = torch.empty(len(tokens), self._dim, dtype=torch.float32, device="cpu")
        sampled = torch.empty(n_samples, dtype=torch.int64, device="cpu")
        product_bytes = max(
            self._layers.scratch_bytes(len(tokens)), self._head.scratch_bytes(min(n_samples, self._block_rows))
        )
        step = records.StepRecord(
            *(part.buffer_info()[0] for part in (columns, tokens, pages)),
            None if sampling is None else sampling.ctypes.data,
            _floats("x", x),
            records.pointer("sampled", sampled, torch.int64),
            len(slices),
            self._block_rows,
            product_bytes,
        )
        return (x, sampled) if self._kernels.step(self._network, step) else None


def whole_steps(
    model: Transformer, layers: FusedLayers | None, pools: PagePools, tables: RopeTables, block_rows: int
) -> WholeSteps | None:
    """The steps of a model that runs in the kernels from embeddings to head, else None."""
    if layers is None or not (model.has_embeddings and model.has_head) or model.output.packed is None:
        return None
    config = model.config
    fits = config.head_dim <= records.MAX_HEAD_DIM and config.n_heads // config.n_kv_heads <= records.MAX_QUERIES
    return WholeSteps(model, layers, pools, tables, block_rows) if fits else None


def _packed(slices: Sequence[Slice], counts: Sequence[int]) -> "tuple[array[int], array[int], array[int]]":
    """`slices`, `tokens` and `pages` of step.h."""
    columns, tokens, pages = array("q"), array("q"), array("q")
    for item, n in zip(slices, counts, strict=True):
        columns.extend((item.start, item.stop, n))
        for table in item.tables:
            columns.extend((table.first_block, len(table.pages)))
        if item.stop - item.start == 1:
            tokens.append(item.tokens[item.start])
        else:
            tokens.extend(item.tokens[item.start : item.stop])
    for pool in range(len(slices[0].tables)):
        for item in slices:
            pages.extend(item.tables[pool].pages)
    return columns, tokens, pages


def _pool(window: int | None, tables: RopeTables, index: int) -> records.PoolRecord:
    factors = None if tables.q_factors is None else _floats("q_factors", tables.q_factors)
    return records.PoolRecord(_floats("rotations", tables.tables[index]), factors, window or 0)


def _floats(name: str, tensor: Tensor) -> int:
    return records.pointer(name, tensor, torch.float32)


def _network(
    model: Transformer,
    layers: FusedLayers,
    head: PackedWeights,
    pool_records: "ctypes.Array[records.PoolRecord]",
    pools: PagePools,
    tables: RopeTables,
) -> records.NetworkRecord:
    config, embeddings = model.config, model.tok_embeddings.weight
    return records.NetworkRecord(
        embeddings=records.pointer("embeddings", embeddings, *records.FLOAT_KINDS),
        layers=ctypes.addressof(layers.layers),
        pools=ctypes.addressof(pool_records),
        norm=_floats("norm", model.norm.weight),
        head=ctypes.addressof(head.record),
        n_layers=len(layers.layers),
        n_pools=len(pool_records),
        n_positions=len(tables.tables[0]),
        n_tokens=len(embeddings),
        dim=config.dim,
        hidden_dim=config.hidden_dim,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        kind=records.CELL_KINDS[pools.layers[0].k.dtype],
        embedding_kind=records.FLOAT_KINDS[embeddings.dtype],
        page_size=records.PAGE_SIZE,
        rows_a_task=layers.attention.rows_a_task(config.n_heads // config.n_kv_heads),
        split=records.SPLIT_PAGES,
        enough=paged.ENOUGH,
        eps=config.norm_eps,
    )
