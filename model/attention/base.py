"""The attention interface: prepare once a step and pool, attend once a layer.

The one rule, whatever the backend: a query sees keys of the *same sequence* with *key <= query* and
*query - key < window*.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows, rotate


class Attention(ABC):
    """A backend. Only it writes keys and values. It reads no slot that was not written."""

    page_size: int
    """Positions in a page, at most 256."""

    dtypes: frozenset[torch.dtype] = frozenset((torch.float32, torch.bfloat16, torch.float16))
    """Supported formats of the keys and values in the cache."""

    capturable = False
    """Whether a step that only decodes can be captured in a CUDA graph and replayed. Its kernels then depend on two
    numbers of the host only: how many slices there are, and the greatest length. Padding is neither written nor
    computed (see `PoolInputs`)."""

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why the backend cannot serve keys and values in `dtype` on `device`, for people to read. None if it can."""
        if dtype in cls.dtypes:
            return None
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in cls.dtypes))
        return f"keeps keys and values in {known}, not in {str(dtype).removeprefix('torch.')}"

    @classmethod
    def unfit(cls, n_heads: int, n_kv_heads: int, head_dim: int) -> str | None:
        """Why the backend cannot serve a model with these heads, for people to read. None if it can."""
        return None

    def allocate(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """Uninitialised memory of one layer: shape is (n_pages, n_kv_heads, head_dim)."""
        n_pages, n_kv_heads, head_dim = shape
        sizes = (n_pages, self.page_size, n_kv_heads, head_dim)
        return LayerCache(*(torch.empty(sizes, dtype=dtype, device=device) for _ in range(2)))

    @abstractmethod
    def prepare(self, inputs: PoolInputs) -> Any:
        """What all layers of one pool share in a step, for example indices and masks."""

    @abstractmethod
    def attend(self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Any) -> Tensor:
        """Rotate q and k, multiply q by its factors, store k and v, then attend with q over the cache.

        qkv is [T, n_heads + 2 n_kv_heads, head_dim]. Returns [T, n_heads, head_dim] in its dtype.
        """


def rotated(qkv: Tensor, n_heads: int, rope: RopeRows, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated q [T, n_heads, head_dim], k and v [T, n_kv_heads, head_dim] for a cache in `dtype`, in PyTorch."""
    n_rotated = (qkv.shape[1] + n_heads) // 2
    dtype = dtype if dtype is not torch.float8_e4m3fn else qkv.dtype
    x = rotate(qkv[:, :n_rotated], rope.rotations)
    if rope.q_factors is not None:
        x[:, :n_heads] *= rope.q_factors[:, None, None]
    x = x.to(qkv.dtype).to(dtype)
    return x[:, :n_heads], x[:, n_heads:], qkv[:, n_rotated:].to(dtype)
