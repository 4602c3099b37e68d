"""Attention without pages, in float64: the expected result of every backend."""

import torch
from torch import Tensor

from model.attention.base import Attention
from tests.model.attention.attending import Heads, attend, random_heads


def dense(heads: Heads, window: int | None) -> Tensor:
    """Attention over one whole sequence in float64. A query sees itself and the `window` - 1 keys before it."""
    q, k, v = (part.double() for part in heads)
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    scores = torch.bmm(q.transpose(0, 1), k.permute(1, 2, 0)) / q.shape[2] ** 0.5  # [heads, queries, keys]
    distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
    visible = (distance >= 0) & (distance < (window or len(q)))
    return torch.bmm(scores.masked_fill_(~visible, -torch.inf).softmax(-1), v.transpose(0, 1)).transpose(0, 1)


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
        torch.testing.assert_close(result.double(), dense((q, k, v), window), atol=tolerance, rtol=tolerance)
