"""Attention without pages, in float64: the expected result of every backend."""

import itertools

import torch
from torch import Tensor

from model.attention.base import Attention
from tests.model.attention.attending import Heads, attend, random_heads


def dense(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """q [n, heads, d], k and v [n, kv_heads, d] of one whole sequence, query by query in float64."""
    n, heads, width = q.shape
    out = torch.empty(n, heads, width, dtype=torch.float64)
    for i, head in itertools.product(range(n), range(heads)):
        first = 0 if window is None else max(0, i - window + 1)
        key_head = head // (heads // k.shape[1])
        keys, values = k[first : i + 1, key_head].double(), v[first : i + 1, key_head].double()
        out[i, head] = (keys @ q[i, head].double() / width**0.5).softmax(0) @ values
    return out


def check_rule(
    backend: Attention,
    lengths: list[int],
    chunks: list[int] | list[list[int]],
    window: int | None,
    heads: tuple[int, int],
    ordered: bool = False,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compute sequences of these lengths together, each cut into chunks, and compare all of them with `dense`."""
    data = random_heads(lengths, heads, dtype=dtype)
    results = attend(backend, data, chunks, window, ordered=ordered)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for (q, k, v), result in zip(data, results, strict=True):
        torch.testing.assert_close(result.double(), dense(q, k, v, window), atol=tolerance, rtol=tolerance)


def dense_at_once(heads: Heads, window: int | None) -> Tensor:
    """The same as `dense` for more and longer heads: all queries at once, in float64."""
    q, k, v = (part.double() for part in heads)
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5
    distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
    visible = (distance >= 0) & (distance < (window or len(q)))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
