"""torch.nn.attention.varlen.varlen_attn in plain PyTorch, from its documentation and what flash attention refuses."""

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """query [T, n_heads, d]; key, value [pages, page_size, n_kv_heads, d]; block_table [N, B]."""
    n_pages, page_size, n_kv_heads, width = key.shape
    assert return_aux is None
    assert num_splits == 1
    assert page_size % 256 == 0
    assert width % 8 == 0
    assert width <= 256
    assert enable_gqa or query.shape[1] == n_kv_heads
    assert query.shape[1] % n_kv_heads == 0
    assert query.dtype == key.dtype == value.dtype
    assert cu_seq_k is not None
    assert seqused_k is not None
    assert block_table is not None
    assert {ints.dtype for ints in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1 == len(block_table) + 1
    assert all(part.stride(-1) == 1 for part in (query, key, value, block_table))
    assert cu_seq_q[-1] == len(query)
    assert max_q == cu_seq_q.diff().max()
    assert max_k == seqused_k.max()
    assert ((block_table >= 0) & (block_table < n_pages)).all()
    assert int(seqused_k.max()) <= page_size * block_table.shape[1]
    out = torch.empty_like(query)
    for first, last, n_keys, pages in zip(cu_seq_q, cu_seq_q[1:], seqused_k, block_table, strict=False):
        k, v = (part[pages].flatten(0, 1)[:n_keys].double() for part in (key, value))
        k, v = (part.repeat_interleave(query.shape[1] // n_kv_heads, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", query[first:last].double(), k) * (scale or width**-0.5)
        at = torch.arange(int(n_keys - (last - first)), int(n_keys))[:, None]  # the last query is at the last key
        left, right = (size if size >= 0 else int(n_keys) for size in window_size)
        keys = torch.arange(int(n_keys))
        visible = (keys >= at - left) & (keys <= at + right)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
    return out
