"""Latent attention (MLA, section 2.1 of arXiv 2405.04434).

The cache has a latent and a rope key for each position, which all heads share. In the absorbed form a head's key is
never made: q k = q (U l) = (U' q) l, so that U' is applied to the query once and attention reads the latents. The
expanded form makes the keys and values of heads, which many queries of a slice then share; see sdpa.py.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from model.attention.base import Attention
from model.attention.cache import LayerCache
from model.attention.rope import RopeRows
from model.checkpoint.stored import Stored
from model.config.latent import LatentConfig
from model.config.model import ModelConfig
from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedLatent, PackedWeights, bfloat16
from model.linear.base import RMSNorm
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from model.network import lora


class HeadProducts(nn.Module):
    """A product for each head, [T, n_heads, n_in] -> [T, n_heads, n_out], with `weight` [n_heads, n_out, n_in]."""

    packed: tuple[PackedWeights, ...] = ()

    def __init__(self, n_heads: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads, n_out, n_in))

    def assign(self, weight: Tensor, dtype: torch.dtype) -> None:
        """Use these weights [n_heads, n_out, n_in] from now on."""
        self.weight = nn.Parameter(weight.to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1)


class CompiledHeadProducts(HeadProducts):
    """The same in the compiled kernels, with weights in bfloat16 whatever the scheme: they are few."""

    def __init__(self, n_heads: int, n_in: int, n_out: int) -> None:
        super().__init__(n_heads, n_in, n_out)
        self._kernels = native.needed()

    def assign(self, weight: Tensor, dtype: torch.dtype) -> None:
        n_heads, n_out, n_in = weight.shape
        self.packed = tuple(bfloat16(n_out, n_in) for _ in range(n_heads))
        for one, rows in zip(self.packed, weight, strict=True):
            self._kernels.quantize(one, 0, rows)
        del self.weight

    def forward(self, x: Tensor) -> Tensor:
        heads = zip(self.packed, x.unbind(1), strict=True)
        return torch.stack([self._kernels.linear(one, rows) for one, rows in heads], dim=1)


class Expansion(nn.Module):
    """Both halves of `wkv_b`, which makes of a latent the keys (without rotary positions) and the values of heads."""

    def __init__(self, latent: LatentConfig, n_heads: int, scheme: str) -> None:
        super().__init__()
        kind = CompiledHeadProducts if SCHEMES[scheme].compiled else HeadProducts
        self._rows, self.value_dim = (latent.qk_nope_head_dim, latent.v_head_dim), latent.v_head_dim
        self.absorb = kind(n_heads, latent.qk_nope_head_dim, latent.kv_lora_rank)
        self.values = kind(n_heads, latent.kv_lora_rank, latent.v_head_dim)

    @property
    def expands(self) -> bool:
        """Return False for the kernels' layout, which serves nothing but products of rows."""
        return not self.absorb.packed

    def expand(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """See `HeadsOfLatents`."""
        keys = torch.einsum("sc,hcn->shn", latents, self.absorb.weight[heads])
        return keys, torch.einsum("sc,hvc->shv", latents, self.values.weight[heads])

    def take(self, rows: Stored, dtype: torch.dtype, device: torch.device) -> None:
        """Use the checkpoint's matrix, [n_heads (qk_nope_head_dim + v_head_dim), kv_lora_rank]."""
        whole = torch.cat([part.float() for part in rows.parts()]).to(device)
        if not whole.isfinite().all():
            raise ValueError("a value is not finite")
        keys, values = whole.unflatten(0, (-1, sum(self._rows))).split(self._rows, dim=1)
        self.absorb.assign(keys.transpose(1, 2).contiguous(), dtype)
        self.values.assign(values.contiguous(), dtype)


class LatentAttention(nn.Module):
    """The attention of a layer. Without `q_lora_rank` the queries are one projection, `wq`."""

    def __init__(self, config: ModelConfig, scheme: str) -> None:
        super().__init__()
        assert config.latent is not None
        latent, self.n_heads = config.latent, config.n_heads
        self._kv_parts = (latent.kv_lora_rank, latent.qk_rope_head_dim)
        width = config.n_heads * latent.head_dim
        if latent.q_lora_rank is None:
            self.wq = make_linear(config.dim, width, scheme=scheme)
        else:
            self.wq_a = make_linear(config.dim, latent.q_lora_rank, scheme=scheme)
            self.q_a_norm = RMSNorm(latent.q_lora_rank, config.norm_eps)
            self.wq_b = make_linear(latent.q_lora_rank, width, scheme=scheme)
        self.wkv_a_with_mqa = make_linear(config.dim, latent.cache_dim, scheme=scheme)
        self.kv_a_norm = RMSNorm(latent.kv_lora_rank, config.norm_eps)
        self.wkv_b = Expansion(latent, config.n_heads, scheme)
        self.wo = make_linear(config.attended_dim, config.dim, scheme=scheme)

    def forward(
        self,
        x: Tensor,
        norm: RMSNorm,
        rope: RopeRows,
        attention: Attention,
        cache: LayerCache,
        prepared: Any,
        uses: lora.LayerUses,
        onto: Tensor | None,
    ) -> Tensor:
        """Compute attention(norm(x)), or add it to `onto` in place. [T, dim] -> [T, dim]"""
        q = self._queries(x, norm).unflatten(1, (self.n_heads, -1))  # [T, n_heads, head_dim]
        latent, k_rope = self.wkv_a_with_mqa(x, norm).split(self._kv_parts, dim=1)
        key = torch.cat((self.kv_a_norm(latent), k_rope), dim=1)  # [T, cache_dim]
        attended = attention.attend_latent(q, key, self.wkv_b, rope, cache, prepared)  # [T, n_heads, v_head_dim]
        return self.wo(attended.flatten(1), onto=onto, adapters=uses.get("wo"))

    def _queries(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """Compute queries: [T, dim] -> [T, n_heads * head_dim]."""
        if hasattr(self, "wq"):
            return self.wq(x, norm)
        return self.wq_b(self.wq_a(x, norm), self.q_a_norm)

    @cached_property
    def packed(self) -> PackedLatent | None:
        """Return the weights but wo, once they are loaded, for the compiled kernels; None where these do not serve."""
        first, q_norm, second = None, None, getattr(self, "wq", None)
        if second is None:
            first, q_norm, second = self.wq_a.packed, self.q_a_norm.weight, self.wq_b
        queries, keys = second.packed, self.wkv_a_with_mqa.packed
        absorb, values = self.wkv_b.absorb.packed, self.wkv_b.values.packed
        if not absorb or queries is None or keys is None:
            return None
        return PackedLatent((q_norm, self.kv_a_norm.weight), (first, queries, keys), absorb, values)
