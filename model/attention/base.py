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
from model.attention.rope import rotate


class Attention(ABC):
    """A backend. It alone writes keys and values, and reads none that were not written."""

    page_size: int
    """Positions a page, at most 256."""

    dtypes: frozenset[torch.dtype] = frozenset((torch.float32, torch.bfloat16, torch.float16))
    """Formats of keys and values in the cache that it serves."""

    capturable = False
    """Whether a step that only decodes can be recorded and repeated: nothing in it depends on what the host knows but
    the number of slices and the greatest length; slot -1 is not written, a slice without queries not computed."""

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why it cannot serve keys and values in `dtype` on `device` here, as a clause for a person; None if it can."""
        if dtype in cls.dtypes:
            return None
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in cls.dtypes))
        return f"keeps keys and values in {known}, not in {str(dtype).removeprefix('torch.')}"

    def allocate(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> LayerCache:
        """Memory, uninitialised, of one layer: shape is (n_pages, n_kv_heads, head_dim)."""
        n_pages, n_kv_heads, head_dim = shape
        sizes = (n_pages, self.page_size, n_kv_heads, head_dim)
        return LayerCache(*(torch.empty(sizes, dtype=dtype, device=device) for _ in range(2)))

    @abstractmethod
    def prepare(self, inputs: PoolInputs) -> Any:
        """What all layers of this pool share in this step: indices and masks."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Any) -> Tensor:
        """Store k, v [T, n_kv_heads, head_dim], then attend q [T, n_heads, head_dim] over the cache.

        q and k are rotated already. Returns [T, n_heads, head_dim].
        """

    def attend_unrotated(self, qkv: Tensor, n_heads: int, turn: Tensor, cache: LayerCache, prepared: Any) -> Tensor:
        """As `attend` for q, k, v in one, qkv [T, n_heads + 2 n_kv_heads, head_dim], q and k not yet rotated.

        `turn` [T, 2, head_dim/2] are their rotations. Returns [T, n_heads, head_dim] in the format of qkv.
        """
        n_turned = (qkv.shape[1] + n_heads) // 2
        dtype = cache.k.dtype if cache.k.dtype is not torch.float8_e4m3fn else qkv.dtype
        turned = rotate(qkv[:, :n_turned], turn).to(dtype)
        q, k, v = turned[:, :n_heads], turned[:, n_heads:], qkv[:, n_turned:].to(dtype)
        return self.attend(q, k, v, cache, prepared).to(qkv.dtype)


def slots_of_keys(inputs: PoolInputs) -> tuple[Tensor, ...]:
    """For each span the slots [n_keys] of its visible keys, in logical order: only slots that have been written."""
    within = torch.arange(inputs.page_size, device=inputs.pages.device)
    slots = (inputs.pages[:, None] * inputs.page_size + within).flatten()  # [P * page_size]
    return tuple(slots.narrow(0, span.page * inputs.page_size + span.offset, span.n_keys) for span in inputs.spans)
