"""An oracle for whole networks: one dense mask over all queries and keys of the step, in float32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention.base import Attention, rotated
from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows
from model.attention.sdpa import slots_of_keys
from model.batch import PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Prepared:
    """Slots to write [T], slots of all keys [S], and which query sees which key [T, S]."""

    slots: Tensor
    keys: Tensor
    mask: Tensor


class ReferenceAttention(Attention):
    """The attention rule as a boolean matrix, for keys and values in any format."""

    page_size = PAGE_SIZE
    dtypes = Attention.dtypes | {torch.float8_e4m3fn}

    def prepare(self, inputs: PoolInputs) -> Prepared:
        device = inputs.slots.device
        spans = inputs.spans

        def column(values: list[int], repeats: list[int]) -> Tensor:
            return torch.repeat_interleave(torch.tensor(values), torch.tensor(repeats)).to(device)

        n_queries, n_keys = [span.n_queries for span in spans], [span.n_keys for span in spans]
        query_owner, key_owner = column([*range(len(spans))], n_queries), column([*range(len(spans))], n_keys)
        query = torch.arange(sum(n_queries), device=device) + column([s.start - s.row for s in spans], n_queries)
        key = torch.cat([torch.arange(s.first_key, s.first_key + s.n_keys, device=device) for s in spans])
        distance = query[:, None] - key  # [T, S]
        mask = (query_owner[:, None] == key_owner) & (distance >= 0)
        if inputs.window is not None:
            mask &= distance < inputs.window
        return Prepared(inputs.slots, torch.cat(slots_of_keys(inputs)), mask)

    def attend(self, qkv: Tensor, n_heads: int, rope: RopeRows, cache: LayerCache, prepared: Prepared) -> Tensor:
        q, k, v = rotated(qkv, n_heads, rope, cache.k.dtype)
        cache.write(prepared.slots, k, v)
        group = q.shape[1] // k.shape[1]
        keys, values = (
            rows.index_select(0, prepared.keys).float().repeat_interleave(group, dim=1) for rows in cache.slots()
        )  # [S, n_heads, head_dim] each
        scores = torch.einsum("thd,shd->hts", q.float(), keys) * q.shape[-1] ** -0.5  # [n_heads, T, S]
        weights = scores.masked_fill(~prepared.mask, float("-inf")).softmax(dim=-1)
        return torch.einsum("hts,shd->thd", weights, values).to(qkv.dtype)  # [T, n_heads, head_dim]
