"""PyTorch's scaled_dot_product_attention: works on any device, one slice after another over gathered keys."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.attention.base import Attention, HeadsOfLatents, rotated
from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs, Span
from model.attention.rope import RopeRows, rotate
from model.batch import PAGE_SIZE

PIECE = 2**25
"""Values that the heads of latent attention make at once, unless one head makes more: keys and values of heads, scores
and masks. They are 128 MiB in float32, of the 256 MiB that the estimate of a step has for logits, which come later."""


@dataclass(frozen=True, slots=True)
class SliceKeys:
    """The n rows of a slice, and the slots [S] of its keys. `visible` [n, S] is None where every row sees all keys, or
    where each sees those up to itself (`causal`)."""

    rows: slice
    slots: Tensor
    visible: Tensor | None
    causal: bool

    def attend(self, q: Tensor, cache: LayerCache) -> Tensor:
        """Attend: q [n, n_heads, head_dim] -> [n, n_heads, value width]. Heads that share a key head read it once."""
        k, v = (rows.index_select(0, self.slots).transpose(0, 1)[:, None] for rows in cache.slots())  # [n_kv, 1, S, d]
        grouped = q.unflatten(1, (len(k), -1)).permute(1, 2, 0, 3)  # [n_kv_heads, group, n, head_dim]
        if len(q) == 1:
            out = scaled_dot_product_attention(grouped.transpose(1, 2), k, v).transpose(1, 2)
        elif cache.shared:  # heads become rows, because copies of the one key for each head take much memory
            rows = grouped.flatten(1, 2)[:, None]  # [1, 1, n_heads * n, head_dim]
            mask = self._mask(self._heads(grouped.shape[1], 2 * len(q)), len(q))
            pieces = rows.split(len(mask), dim=2)
            found = [scaled_dot_product_attention(x, k, v, attn_mask=mask[: x.shape[2]]) for x in pieces]
            out = torch.cat(found, dim=2).unflatten(2, (grouped.shape[1], -1)).flatten(1, 2)
        else:
            shared = (-1, grouped.shape[1], -1, -1)
            out = scaled_dot_product_attention(
                grouped, k.expand(shared), v.expand(shared), attn_mask=self.visible, is_causal=self.causal
            )
        return out.permute(2, 0, 1, 3).flatten(1, 2)

    def _heads(self, n_heads: int, values: int) -> int:
        """Return how many heads are computed at once, each of which makes `width` values for a key."""
        return min(n_heads, max(1, PIECE // (len(self.slots) * values)))

    def _mask(self, n_heads: int, n: int) -> Tensor:
        """Return a mask of the keys that n > 1 rows of so many heads see, [n_heads * n, S]."""
        visible = self.visible
        if visible is None:
            visible = torch.ones(n, len(self.slots), dtype=torch.bool, device=self.slots.device).tril()
        return visible.repeat(n_heads, 1)

    def attend_latent(self, q: Tensor, cache: LayerCache, heads: HeadsOfLatents, n_rope: int) -> Tensor:
        """Attend over latents in the cheaper way: rotated q [n, n_heads, head_dim] -> [n, n_heads, v_head_dim]."""
        q_nope, q_rope = q.split((q.shape[2] - n_rope, n_rope), dim=2)
        latent, dtype = cache.v.shape[3], q.dtype
        if not heads.expands or not suits_expansion(len(q), latent, q_nope.shape[2], heads.value_dim):
            absorbed = torch.cat((heads.absorb(q_nope), q_rope), dim=2).to(cache.k.dtype)
            return heads.values(self.attend(absorbed, cache).to(dtype))
        n_heads, head_dim = q.shape[1:]
        keys = cache.k.flatten(0, 2).index_select(0, self.slots).to(dtype)
        size = self._heads(n_heads, q_nope.shape[2] + head_dim + heads.value_dim + len(q))
        pieces = [slice(first, first + size) for first in range(0, n_heads, size)]
        return torch.cat([self._expanded(q[:, piece], keys, latent, heads, piece) for piece in pieces], dim=1)

    def _expanded(self, q: Tensor, keys: Tensor, latent: int, heads: HeadsOfLatents, piece: slice) -> Tensor:
        """Attend with the queries q of a piece of the heads; keys [S, latent and rope key] are the cache's."""
        latents, k_rope = keys.tensor_split((latent,), dim=1)
        k_nope, v = heads.expand(latents, piece)
        k = torch.cat((k_nope, k_rope[:, None].expand(-1, k_nope.shape[1], -1)), dim=2)  # [S, heads, head_dim]
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        scale = keys.shape[1] ** -0.5  # the factors of queries make it the model's
        out = scaled_dot_product_attention(q, k, v, attn_mask=self.visible, is_causal=self.causal, scale=scale)
        return out[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Slots to write [T], and the parts, which together cover all rows."""

    slots: Tensor
    parts: Sequence[SliceKeys]


class SdpaAttention(Attention):
    """Attention of packed rows over gathered pages."""

    page_size = PAGE_SIZE

    def prepare(self, inputs: PoolInputs) -> Prepared:
        slots = slots_of_keys(inputs)
        return Prepared(inputs.slots, [_part(*pair, inputs.window) for pair in zip(inputs.spans, slots, strict=True)])

    def attend(self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Prepared) -> Tensor:
        q, k, v = rotated(qkv, n_heads, rope, cache.k.dtype, shared=cache.shared)
        cache.write(prepared.slots, k, v)
        return torch.cat([part.attend(q[part.rows], cache) for part in prepared.parts]).to(qkv.dtype)

    def attend_latent(
        self, q: Tensor, key: Tensor, heads: HeadsOfLatents, rope: RopeRows, cache: LayerCache, prepared: Prepared
    ) -> Tensor:
        """See `Attention.attend_latent`; long slices are computed in the expanded form."""
        dtype, n_rope = q.dtype, 2 * rope.rotations.shape[2]
        key = rotate(key[:, None], rope.rotations)
        cache.write(prepared.slots, key.to(cache.k.dtype), key)
        q = rotate(q, rope.rotations)
        if rope.q_factors is not None:
            q *= rope.q_factors[:, None, None]
        q = q.to(dtype)
        parts = [part.attend_latent(q[part.rows], cache, heads, n_rope) for part in prepared.parts]
        return torch.cat(parts).to(dtype)


def suits_expansion(n_queries: int, latent: int, nope: int, value: int) -> bool:
    """Return whether to expand for so many queries of a slice: each saves 2 latent - nope - value products
    a key and head, and to make a key and its value takes latent (nope + value).

    Worked example: Mistral Small 4, 256, 64 and 128 -> from 154 queries on.
    """
    return n_queries * (2 * latent - nope - value) > latent * (nope + value)


def slots_of_keys(inputs: PoolInputs) -> tuple[Tensor, ...]:
    """Return the slots [n_keys] of each span's visible keys, in logical order. All of them have been written."""
    size = inputs.page_size
    slots = (inputs.pages[:, None] * size + torch.arange(size, device=inputs.pages.device)).flatten()  # [P * page_size]
    return tuple(slots.narrow(0, span.page * size + span.first_key % size, span.n_keys) for span in inputs.spans)


def _part(span: Span, slots: Tensor, window: int | None) -> SliceKeys:
    rows = slice(span.row, span.row + span.n_queries)
    if span.n_queries == 1:
        return SliceKeys(rows, slots, None, causal=False)
    if span.n_queries == span.n_keys and (window is None or window >= span.n_keys):
        return SliceKeys(rows, slots, None, causal=True)
    query = torch.arange(span.start, span.start + span.n_queries, device=slots.device)
    distance = query[:, None] - torch.arange(span.first_key, span.start + span.n_queries, device=slots.device)
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)  # [n, S]
    return SliceKeys(rows, slots, visible, causal=False)
