"""The attention interface: prepare once a step and pool, attend once a layer.

The one rule, whatever the backend: a query sees keys of the *same sequence* with *key <= query* and
*query - key < window*.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from model.attention.cache import LayerCache, layer_cache
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows, rotate
from model.config.latent import Heads


class HeadsOfLatents(Protocol):
    """The weights that lead from a latent [kv_lora_rank] to each head's key, without rotary positions, and value."""

    value_dim: int
    """Channels of a head's value."""

    @property
    def expands(self) -> bool:
        """Return whether `expand` can be called."""
        ...

    def absorb(self, q: Tensor) -> Tensor:
        """Move queries without rotary positions to latent channels, [n, n_heads, qk_nope_head_dim] -> [.., rank]."""
        ...

    def values(self, latents: Tensor) -> Tensor:
        """Make values of sums of latents, [n, n_heads, kv_lora_rank] -> [n, n_heads, v_head_dim]."""
        ...

    def expand(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """Make keys without rotary positions and values of these heads, [S, heads, qk_nope_head_dim and v_head_dim]."""
        ...


class Attention(ABC):
    """A backend. Only it writes keys and values. It reads no slot that was not written."""

    page_size: int
    """Positions in a page, at most 256."""

    dtypes: frozenset[torch.dtype] = frozenset((torch.float32, torch.bfloat16, torch.float16))
    """Supported formats of the keys and values in the cache."""

    capturable = False
    """Whether a step can be captured in a CUDA graph and replayed for shorter ones. Its kernels then depend on the
    numbers of the host only: rows, slices, and what the spans of the capture bound. Padding is neither written nor
    computed (see `PoolInputs`)."""

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why the backend cannot serve keys and values in `dtype` on `device`, for people. None if it can."""
        if dtype in cls.dtypes:
            return None
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in cls.dtypes))
        return f"keeps keys and values in {known}, not in {str(dtype).removeprefix('torch.')}"

    @classmethod
    def unfit(cls, heads: Heads) -> str | None:
        """Return why the backend cannot serve a model with these heads, for people. None if it can."""
        return None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """Allocate uninitialised memory of one layer: `shape` is (n_pages, n_kv_heads, head_dim).

        For heads with `Heads.latent` channels, these are one more number.
        """
        n_pages, n_kv_heads, head_dim, *latent = shape
        sizes = (n_pages, self.page_size, n_kv_heads, head_dim)
        return layer_cache([torch.empty(sizes, dtype=dtype, device=device) for _ in range(2 - any(latent))], *latent)

    @abstractmethod
    def prepare(self, inputs: PoolInputs) -> Any:
        """Return the inputs that all layers of one pool share in a step, for example indices and masks."""

    @abstractmethod
    def attend(self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Any) -> Tensor:
        """Rotate q and k, multiply q by its factors, store k and v, then attend with q over the cache.

        qkv is [T, n_heads + 2 n_kv_heads, head_dim]. Returns [T, n_heads, head_dim] in its dtype. A cache with `shared`
        values has one key and no values in qkv, [T, n_heads + 1, head_dim], and the result is as wide as these values.
        """

    def attend_latent(
        self, q: Tensor, key: Tensor, heads: HeadsOfLatents, rope: RopeRows, cache: LayerCache, prepared: Any
    ) -> Tensor:
        """Attend: queries [T, n_heads, head_dim], keys [T, latent and rope key] -> [T, n_heads, v_head_dim].

        In the absorbed form: no head's key or value is made.
        """
        n_rope = 2 * rope.rotations.shape[2]
        q_nope, q_rope = q.split((q.shape[2] - n_rope, n_rope), dim=2)
        qk = torch.cat((torch.cat((heads.absorb(q_nope), q_rope), dim=2), key[:, None]), dim=1)
        return heads.values(self.attend(qk, q.shape[1], rope, cache, prepared))


def rotated(
    qkv: Tensor, n_heads: int, rope: RopeRows, dtype: torch.dtype, *, shared: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated q [T, n_heads, head_dim], k and v [T, n_kv_heads, head_dim] for a cache in `dtype`.

    If the values are `shared` with the keys, v has no heads.
    """
    n_rotated = qkv.shape[1] if shared else (qkv.shape[1] + n_heads) // 2
    dtype = dtype if dtype is not torch.float8_e4m3fn else qkv.dtype
    x = rotate(qkv[:, :n_rotated], rope.rotations)
    if rope.q_factors is not None:
        x[:, :n_heads] *= rope.q_factors[:, None, None]
    x = x.to(qkv.dtype).to(dtype)
    return x[:, :n_heads], x[:, n_heads:], qkv[:, n_rotated:].to(dtype)
