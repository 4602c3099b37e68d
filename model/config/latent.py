"""Latent attention (MLA): its sizes, and the heads that attention over the cache has with and without it. No torch."""

from dataclasses import dataclass, fields
from typing import NamedTuple

from model.errors import ModelError, short
from model.ranges import MAX_SIZE, is_number, is_size


class Heads(NamedTuple):
    """The heads of attention over the cache.

    With `latent` channels there is one key, which all query heads share. Its first `latent` channels are the value too,
    and only the others rotate.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    latent: int = 0

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """Return the shape of the cache, as in `Attention.allocate`, without the number of pages."""
        shape = self.n_kv_heads, self.head_dim
        return (*shape, self.latent) if self.latent else shape

    @property
    def value_dim(self) -> int:
        return self.latent or self.head_dim

    @property
    def rope_dim(self) -> int:
        """Return the channels of a head that the tables of rotations have."""
        return self.head_dim - self.latent

    @property
    def n_groups(self) -> int:
        """Return the groups of query heads computed apart: one for each key head, or up to 16 heads of a shared key."""
        if not self.latent:
            return self.n_kv_heads
        return self.n_heads // max(size for size in range(1, 17) if self.n_heads % size == 0)

    @property
    def n_stored(self) -> int:
        """Return how many vectors of `head_dim` the cache has for a position."""
        return 1 if self.latent else 2 * self.n_kv_heads


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention (MLA, section 2.1 of arXiv 2405.04434), with the sizes of `params.json`.

    Queries come through `q_lora_rank` channels, or directly for None. Keys and values come from a latent of
    `kv_lora_rank` channels. The first `qk_nope_head_dim` channels of a head do not rotate, the next `qk_rope_head_dim`
    do; this part of the key is one for all heads. `mscale` is the factor that the file may ask for, of the scale of
    scores, and `scaled` says whether it counts.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    mscale: float = 1.0
    scaled: bool = False

    def __post_init__(self) -> None:
        for item in fields(self)[:5]:
            value = getattr(self, item.name)
            if not is_size(value) and not (item.name == "q_lora_rank" and value is None):
                raise ModelError(f"{item.name} must be at least 1 and at most {MAX_SIZE}, it is {short(value)}")
        if self.qk_rope_head_dim % 2:
            raise ModelError(f"qk_rope_head_dim must be even, it is {self.qk_rope_head_dim}")
        if not (is_number(self.mscale) and self.mscale > 0):
            raise ModelError(f"the mscale of latent attention must be a number above 0, it is {short(self.mscale)}")

    @property
    def head_dim(self) -> int:
        """Return the channels of a query or a key of one head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_dim(self) -> int:
        """Return how many values the cache has for a position and a layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Return the factor of scores. Worked example: heads of 64 + 64, not scaled -> 1 / sqrt(128) = 0.0883883."""
        return self.head_dim**-0.5 * (self.mscale if self.scaled else 1.0)

    @property
    def scale_words(self) -> str:
        """Describe the scale of scores for the log, and how to choose the other one."""
        yarn = f"times {self.mscale:.5g}"
        used = f"scores are scaled by {self.softmax_scale:.6g}, 1 / sqrt(head_dim)"
        if self.mscale == 1.0:
            return used
        if self.scaled:
            return f"{used} {yarn}, by YaRN; without that: --softmax-scale base"
        return f"{used}; transformers and llama.cpp scale them {yarn}: for that, --softmax-scale yarn"

    def n_parameters(self, dim: int, n_heads: int) -> int:
        """Count the weights of a layer's attention, its norms included."""
        rank, q = self.q_lora_rank, n_heads * self.head_dim
        queries = dim * q if rank is None else dim * rank + rank + rank * q
        keys = dim * self.cache_dim + self.kv_lora_rank
        return queries + keys + self.n_expanding(n_heads) + n_heads * self.v_head_dim * dim

    def n_expanding(self, n_heads: int) -> int:
        """Count the weights of a layer's wkv_b, which makes keys and values of latents."""
        return n_heads * self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
