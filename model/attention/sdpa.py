"""PyTorch's scaled_dot_product_attention: works on any device.

Slices of one token (decode) are batched in groups of similar length. Longer slices are computed one by one. Keys are
gathered in logical order, or viewed in place where their page ids are consecutive. On a CPU, plain matrix products
compute a batch: scaled_dot_product_attention takes three times as long there for a single query.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.attention.base import Attention, slots_of_keys
from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs, Span
from model.batch import PAGE_SIZE
from model.machine.transfers import upload

PADDING = 1.25
"""In a group, the longest slice has at most this many times the keys of the shortest."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Slots of a group's keys [B, S], row after row. `view` is the first slot if they are consecutive (B = 1)."""

    slots: Tensor
    shape: tuple[int, int]
    view: int | None

    def gather(self, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Keys and values [B, n_kv_heads, S, head_dim]."""
        k, v = (
            rows.index_select(0, self.slots) if self.view is None else rows.narrow(0, self.view, self.shape[1])
            for rows in cache.slots()
        )
        shape = (*self.shape, *k.shape[1:])
        return k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)

    def gather_heads(self, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Keys and values [B * n_kv_heads, S, head_dim], contiguous: each head of a slot is a row."""
        n_heads, width = cache.k.shape[2:]
        first = self.slots.view(self.shape[0], 1, -1) * n_heads
        index = (first + torch.arange(n_heads, device=first.device)[:, None]).view(-1)
        shape = (-1, self.shape[1], width)
        k, v = (pool.view(-1, width).index_select(0, index).view(shape) for pool in (cache.k, cache.v))
        return k, v


@dataclass(frozen=True, slots=True)
class Decodes:
    """B slices of one token: their rows and keys [B, S], and `visible` [B, 1, 1, S] if their lengths differ.

    A shorter slice repeats its last key, and the mask hides the copies: no unwritten slot is read.
    """

    rows: slice | Tensor
    keys: Keys
    visible: Tensor | None

    def attend(self, q: Tensor, cache: LayerCache) -> Tensor:
        """q [B, n_heads, head_dim]. Heads that share a key head become queries of it: its keys are read once."""
        grouped = q.reshape(len(q), cache.k.shape[2], -1, q.shape[2])  # [B, n_kv_heads, group, head_dim]
        if q.device.type == "cpu" and len(q) > 1:
            return self._multiply(grouped, cache).view(q.shape)
        k, v = self.keys.gather(cache)
        return scaled_dot_product_attention(grouped, k, v, attn_mask=self.visible).reshape(q.shape)

    def _multiply(self, q: Tensor, cache: LayerCache) -> Tensor:
        """The result of scaled_dot_product_attention."""
        k, v = self.keys.gather_heads(cache)
        scores = torch.bmm(q.flatten(0, 1), k.mT).mul_(q.shape[-1] ** -0.5)  # [B * n_kv_heads, group, S]
        if self.visible is not None:
            scores.view(*q.shape[:3], -1).masked_fill_(~self.visible, float("-inf"))
        return torch.bmm(scores.softmax(dim=-1), v)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One slice of n rows, more than one. `visible` [n, S] is None where plain causal attention is enough."""

    rows: slice
    keys: Keys
    visible: Tensor | None

    def attend(self, q: Tensor, cache: LayerCache) -> Tensor:
        """q [n, n_heads, head_dim]. Key heads are the batch axis; they are expanded, not copied, for their queries."""
        k, v = (part.transpose(0, 1) for part in self.keys.gather(cache))  # [n_kv_heads, 1, S, head_dim]
        grouped = q.unflatten(1, (len(k), -1)).permute(1, 2, 0, 3)  # [n_kv_heads, group, n, head_dim]
        shared = (-1, grouped.shape[1], -1, -1)
        out = scaled_dot_product_attention(
            grouped,
            k.expand(shared),  # [n_kv_heads, group, S, head_dim]
            v.expand(shared),
            attn_mask=self.visible,
            is_causal=self.visible is None,
        )
        return out.permute(2, 0, 1, 3).flatten(1, 2)  # [n, n_heads, head_dim]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Slots to write [T], and the parts, which together cover all rows."""

    slots: Tensor
    parts: Sequence[Decodes | Chunk]


class SdpaAttention(Attention):
    """Attention of packed rows over gathered pages."""

    page_size = PAGE_SIZE

    def prepare(self, inputs: PoolInputs) -> Prepared:
        slots = slots_of_keys(inputs)
        chunks = [(span, slots[i]) for i, span in enumerate(inputs.spans) if span.n_queries > 1]
        groups = _groups([span for span in inputs.spans if span.n_queries == 1])
        parts: list[Decodes | Chunk] = [_decodes(group, inputs) for group in groups]
        parts += [_chunk(span, keys, inputs.window) for span, keys in chunks]
        return Prepared(inputs.slots, parts)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        cache.write(prepared.slots, k, v)
        if len(prepared.parts) == 1:
            return prepared.parts[0].attend(q, cache)
        out = torch.empty_like(q)  # [T, n_heads, head_dim]
        for part in prepared.parts:
            out[part.rows] = part.attend(q[part.rows], cache)
        return out


def _groups(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans grouped by number of keys, to keep padding small. A group is in the order of the batch."""
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda item: item.n_keys):
        if groups and span.n_keys <= PADDING * groups[-1][0].n_keys:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [sorted(group, key=lambda item: item.row) for group in groups]


def _decodes(group: Sequence[Span], inputs: PoolInputs) -> Decodes:
    """The spans of a group as one batch. A span shorter than the longest repeats its last key."""
    first, n = group[0].row, len(group)
    lengths = [span.n_keys for span in group]
    rows, firsts, lasts = upload(
        [
            np.array([span.row for span in group]),
            np.array([span.page * inputs.page_size + span.offset for span in group]),
            np.array(lengths) - 1,
        ],
        inputs.pages.device,
    )
    index = torch.arange(max(lengths), device=rows.device).expand(n, -1)  # [B, S]
    within = firsts[:, None] + index.minimum(lasts[:, None])  # place among the pages of all spans, in positions
    slots = inputs.pages[within // inputs.page_size] * inputs.page_size + within % inputs.page_size
    view = group[0].first_slot if n == 1 else None
    visible = None if min(lengths) == max(lengths) else (index <= lasts[:, None])[:, None, None]
    adjoining = group[-1].row - first == n - 1
    return Decodes(
        slice(first, first + n) if adjoining else rows, Keys(slots.flatten(), (n, max(lengths)), view), visible
    )


def _chunk(span: Span, slots: Tensor, window: int | None) -> Chunk:
    keys, rows = Keys(slots, (1, span.n_keys), span.first_slot), slice(span.row, span.row + span.n_queries)
    if span.n_queries == span.n_keys and (window is None or window >= span.n_keys):
        return Chunk(rows, keys, None)
    query = torch.arange(span.start, span.start + span.n_queries, device=slots.device)
    distance = query[:, None] - torch.arange(span.first_key, span.start + span.n_queries, device=slots.device)
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)  # [n, S]
    return Chunk(rows, keys, visible)
