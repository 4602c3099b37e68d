"""Keys and values of all sequences: pools of pages, one pool for each distinct window."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.batch import PageCopy, PoolSpec
from model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, each [n_pages, page_size, n_kv_heads, head_dim].

    Slot `page * page_size + position % page_size` holds one position. A backend may choose its own layout inside a page
    (see `Attention.allocate`) if nothing else reads or writes it. Memory that was not written may hold any value, also
    NaN, and must not be read.
    """

    k: Tensor
    v: Tensor

    def slots(self) -> tuple[Tensor, Tensor]:
        """Keys and values with one slot a row: views [n_pages * page_size, n_kv_heads, head_dim]."""
        return self.k.flatten(0, 1), self.v.flatten(0, 1)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, n_kv_heads, head_dim] at `slots` [T]. In float8, values out of range become the limit."""
        for rows, new in zip(self.slots(), (k, v), strict=True):
            if rows.dtype is torch.float8_e4m3fn:
                limit = torch.finfo(rows.dtype).max
                rows, new = rows.view(torch.uint8), new.clamp(-limit, limit).to(rows.dtype).view(torch.uint8)
            rows.index_copy_(0, slots, new)

    def copy_page(self, source: int, target: int) -> None:
        """Make a page equal to another, in whatever layout."""
        for pages in (self.k, self.v):
            pages[target].copy_(pages[source])


@dataclass(frozen=True, slots=True)
class PagePools:
    """The cache of a model: `layers[i]` belongs to layer i, whose pool is `pool_of_layer[i]`."""

    layers: tuple[LayerCache, ...]
    pool_of_layer: tuple[int, ...]

    @classmethod
    def allocate(
        cls, config: ModelConfig, specs: Sequence[PoolSpec], layer: Callable[[tuple[int, int, int]], LayerCache]
    ) -> "PagePools":
        """The cache with memory for `specs` (one for each distinct window, in the order of `config.pool_windows`).

        `layer` makes the cache of one layer from (n_pages, n_kv_heads, head_dim).
        """
        pool_of_layer = tuple(config.pool_windows.index(window) for window in config.windows)
        layers = (layer((specs[i].n_pages, config.n_kv_heads, config.head_dim)) for i in pool_of_layer)
        return cls(tuple(layers), pool_of_layer)

    def copy_pages(self, copies: Iterable[PageCopy]) -> None:
        """Copy pages in all layers of their pools, one after the other."""
        for copy in copies:
            for pool, layer in zip(self.pool_of_layer, self.layers, strict=True):
                if pool == copy.pool:
                    layer.copy_page(copy.source, copy.target)
