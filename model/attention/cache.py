"""Keys and values of all sequences: pools of pages, one pool for each distinct window."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.batch import PageCopy, PoolSpec
from model.config.model import ModelConfig
from model.machine.transfers import Fetch


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, each [n_pages, page_size, n_kv_heads, head_dim].

    If the values are the first channels of the keys (`Heads.latent`), `v` is a view of `k` and `shared` is True.

    Slot `page * page_size + position % page_size` holds one position. A backend may choose its own layout inside a page
    (see `Attention.allocate`) if nothing else reads or writes it. Memory that was not written may hold any value, also
    NaN, and must not be read.
    """

    k: Tensor
    v: Tensor
    shared: bool = False

    @property
    def halves(self) -> tuple[Tensor, ...]:
        """Return the memory of the cache: the keys, then the values unless they are part of the keys."""
        return (self.k,) if self.shared else (self.k, self.v)

    def slots(self) -> tuple[Tensor, Tensor]:
        """Return keys and values with one slot a row: views [n_pages * page_size, n_kv_heads, head_dim]."""
        return self.k.flatten(0, 1), self.v.flatten(0, 1)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, n_kv_heads, head_dim] at `slots` [T]. In float8, values out of range become the limit.

        Shared values are stored with their keys.
        """
        for half, new in zip(self.halves, (k, v), strict=False):
            rows = half.flatten(0, 1)
            if rows.dtype is torch.float8_e4m3fn:
                limit = torch.finfo(rows.dtype).max
                rows, new = rows.view(torch.uint8), new.clamp(-limit, limit).to(rows.dtype).view(torch.uint8)
            rows.index_copy_(0, slots, new)


def layer_cache(halves: Sequence[Tensor], latent: int = 0) -> LayerCache:
    """Return the cache in this memory: keys and values, or with `latent` channels of values only keys."""
    if latent:
        return LayerCache(halves[0], halves[0][..., :latent], shared=True)
    k, v = halves
    return LayerCache(k, v)


class PagePools:
    """The cache of a model: `layers[i]` belongs to layer i, whose pool is `pool_of_layer[i]`."""

    def __init__(self, layers: tuple[LayerCache, ...], pool_of_layer: tuple[int, ...]) -> None:
        self.layers, self.pool_of_layer = layers, pool_of_layer
        # Of each pool the bytes [n_pages, n] of the keys of its first layer, of its values, then of the next layer.
        self._bytes: list[list[Tensor]] = [[] for _ in range(max(pool_of_layer, default=-1) + 1)]
        for pool, layer in zip(pool_of_layer, layers, strict=True):
            self._bytes[pool] += map(_as_bytes, layer.halves)

    @classmethod
    def allocate(
        cls, config: ModelConfig, specs: Sequence[PoolSpec], layer: Callable[[Sequence[int]], LayerCache]
    ) -> "PagePools":
        """Allocate the cache of `specs`, one for each distinct window in the order of `config.pool_windows`.

        `layer` makes the cache of one layer from the shape of `Attention.allocate`.
        """
        pool_of_layer = tuple(config.pool_windows.index(window) for window in config.windows)
        layers = (layer((specs[i].n_pages, *config.heads.cache_shape)) for i in pool_of_layer)
        return cls(tuple(layers), pool_of_layer)

    def copy_pages(self, copies: Iterable[PageCopy]) -> None:
        """Copy pages in all layers of their pools, one after the other."""
        for copy in copies:
            for pages in self._bytes[copy.pool]:
                pages[copy.target].copy_(pages[copy.source])

    def page_bytes(self, pool: int) -> int:
        """See `model.batch.PageBytes`."""
        return sum(pages.shape[1] for pages in self._bytes[pool])

    @torch.inference_mode()
    def read(self, pool: int, page: int) -> Callable[[], memoryview]:
        """See `model.batch.PageBytes`."""
        fetch = Fetch(torch.cat([pages[page] for pages in self._bytes[pool]]))
        return lambda: fetch.wait().numpy().data

    @torch.inference_mode()
    def write(self, pool: int, page: int, data: memoryview) -> None:
        """See `model.batch.PageBytes`."""
        parts = self._bytes[pool]
        whole = torch.frombuffer(data, dtype=torch.uint8).to(parts[0].device)
        for pages, new in zip(parts, whole.split([pages.shape[1] for pages in parts]), strict=True):
            pages[page].copy_(new)


def _as_bytes(pages: Tensor) -> Tensor:
    """View the memory of pages as bytes, a page a row. A page is dense, in whatever order of its dimensions."""
    flat = pages.view(torch.uint8)
    return flat.as_strided((len(flat), flat[0].numel()), (flat.stride(0), 1))
