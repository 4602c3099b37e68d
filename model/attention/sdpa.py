"""PyTorch's scaled_dot_product_attention: works on any device.

Slices of one token (decoding) are batched in groups of similar length; longer slices go one by one. Keys are
gathered in logical order, or viewed in place where their pages follow one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.attention.base import Attention, slots_of_keys
from model.cache import LayerCache
from model.packing import PoolInputs, Span, upload

PADDING = 1.25
"""Decoding slices share a group while the longest has at most this many times the keys of the shortest."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Slots of a group's keys [B, S] row after row; `view` is the first slot if they follow one another (B = 1)."""

    slots: Tensor
    shape: tuple[int, int]
    view: int | None

    def gather(self, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Keys and values [B, S, n_kv_heads, head_dim]."""
        k, v = (
            rows.index_select(0, self.slots) if self.view is None else rows.narrow(0, self.view, self.shape[1])
            for rows in cache.slots()
        )
        return k.unflatten(0, self.shape), v.unflatten(0, self.shape)


@dataclass(frozen=True, slots=True)
class Decodes:
    """B one-token slices: their rows [B] and keys [B, S]; `visible` [B, 1, 1, S] where they differ in length.

    A shorter slice repeats its last key, hidden by the mask: no unwritten slot is read.
    """

    rows: Tensor
    keys: Keys
    visible: Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One longer slice, rows `row..row+n-1`; `visible` [n, S] is None where plain causal attention does."""

    row: int
    n_queries: int
    keys: Keys
    visible: Tensor | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Slots to write [T] and the two kinds of slices."""

    slots: Tensor
    decodes: tuple[Decodes, ...]
    chunks: tuple[Chunk, ...]


class SdpaAttention(Attention):
    """Packed rows against gathered pages."""

    page_size = 32

    def prepare(self, inputs: PoolInputs) -> Prepared:
        slots = slots_of_keys(inputs)
        chunks = [(span, slots[i]) for i, span in enumerate(inputs.spans) if span.n_queries > 1]
        decodes = _groups([span for span in inputs.spans if span.n_queries == 1])
        return Prepared(
            inputs.slots,
            tuple(_decodes(group, inputs) for group in decodes),
            tuple(_chunk(span, keys, inputs.window) for span, keys in chunks),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        cache.write(prepared.slots, k, v)
        out = torch.empty_like(q)  # [T, n_heads, head_dim]
        for group in prepared.decodes:
            out.index_copy_(0, group.rows, _attend_decodes(q.index_select(0, group.rows), group, cache))
        for chunk in prepared.chunks:
            rows = slice(chunk.row, chunk.row + chunk.n_queries)
            out[rows] = _attend_chunk(q[rows], chunk, cache)
        return out


def _attend_decodes(q: Tensor, group: Decodes, cache: LayerCache) -> Tensor:
    """q [B, n_heads, head_dim]: the heads that share a key head become its queries, so keys are read once."""
    k, v = group.keys.gather(cache)  # [B, S, n_kv_heads, head_dim]
    out = scaled_dot_product_attention(
        q.unflatten(1, (k.shape[2], -1)),  # [B, n_kv_heads, group, head_dim]
        k.transpose(1, 2),  # [B, n_kv_heads, S, head_dim]
        v.transpose(1, 2),
        attn_mask=group.visible,
    )
    return out.flatten(1, 2)  # [B, n_heads, head_dim]


def _attend_chunk(q: Tensor, chunk: Chunk, cache: LayerCache) -> Tensor:
    """q [n, n_heads, head_dim]. Key heads are the batch axis, shared by expanding them, without copies."""
    k, v = chunk.keys.gather(cache)  # [1, S, n_kv_heads, head_dim]
    grouped = q.unflatten(1, (k.shape[2], -1)).permute(1, 2, 0, 3)  # [n_kv_heads, group, n, head_dim]
    shared = (-1, grouped.shape[1], -1, -1)
    out = scaled_dot_product_attention(
        grouped,
        k.permute(2, 0, 1, 3).expand(shared),  # [n_kv_heads, group, S, head_dim]
        v.permute(2, 0, 1, 3).expand(shared),
        attn_mask=chunk.visible,
        is_causal=chunk.visible is None,
    )
    return out.permute(2, 0, 1, 3).flatten(1, 2)  # [n, n_heads, head_dim]


def _groups(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans by similar number of keys, so that padding stays small."""
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda item: item.n_keys):
        if groups and span.n_keys <= PADDING * groups[-1][0].n_keys:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _decodes(group: Sequence[Span], inputs: PoolInputs) -> Decodes:
    """Slots of each slice's keys; beyond a slice's end its last key again."""
    longest = group[-1].n_keys
    same = group[0].n_keys == longest
    rows, firsts, lasts = upload(
        [
            np.array([span.row for span in group]),
            np.array([span.page * inputs.page_size + span.offset for span in group]),
            np.array([span.n_keys - 1 for span in group]),
        ],
        inputs.pages.device,
    )
    index = torch.arange(longest, device=rows.device).expand(len(group), -1)  # [B, S]
    within = firsts[:, None] + index.minimum(lasts[:, None])  # place among the pages of all spans, in positions
    slots = inputs.pages[within // inputs.page_size] * inputs.page_size + within % inputs.page_size
    view = group[0].first_slot if len(group) == 1 else None
    visible = None if same else (index <= lasts[:, None])[:, None, None]
    return Decodes(rows, Keys(slots.flatten(), (len(group), longest), view), visible)


def _chunk(span: Span, slots: Tensor, window: int | None) -> Chunk:
    keys = Keys(slots, (1, span.n_keys), span.first_slot)
    if span.n_queries == span.n_keys and (window is None or window >= span.n_keys):
        return Chunk(span.row, span.n_queries, keys, None)
    query = torch.arange(span.start, span.start + span.n_queries, device=slots.device)
    distance = query[:, None] - torch.arange(span.first_key, span.start + span.n_queries, device=slots.device)
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)  # [n, S]
    return Chunk(span.row, span.n_queries, keys, visible)
