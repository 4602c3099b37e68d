"""Steps over one sequence, alone or beside another: for tests that compare bits."""

import random

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import LayerCache
from model.batch import PageTable, Slice, StepBatch
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention.attending import CPU, forget, unrotated


class Sequence:
    """Random q, k, v of one sequence and its pages, scattered in a pool."""

    def __init__(self, length: int, pages: list[int], n_kv_heads: int) -> None:
        self.q, self.k, self.v = (torch.randn(length, heads, 24) for heads in (3 * n_kv_heads, n_kv_heads, n_kv_heads))
        self.pages, self.length = pages, length


def attend(
    backend: Attention,
    cache: LayerCache,
    parts: list[tuple[Sequence, int, int]],
    window: int | None,
    shift: int = 0,
) -> list[Tensor]:
    """One step over positions start..stop-1 of each sequence; their rows. All stand `shift` positions later."""
    slices = tuple(
        Slice(
            i,
            range(shift + stop),
            shift + stop,
            shift + start,
            shift + stop,
            (PageTable(shift // backend.page_size, s.pages),),
            SamplingParams(),
        )
        for i, (s, start, stop) in enumerate(parts)
    )
    inputs = pack(StepBatch(slices), backend.page_size, [window], CPU)
    q, k, v = (torch.cat([getattr(s, name)[start:stop] for s, start, stop in parts]) for name in "qkv")
    out = backend.attend(*unrotated(q, k, v), cache, backend.prepare(inputs.pools[0]))
    return list(out.split([stop - start for _, start, stop in parts]))


def two_sequences(
    backend: Attention, dtype: torch.dtype, lengths: tuple[int, int], n_kv_heads: int = 2
) -> tuple[LayerCache, Sequence, Sequence]:
    torch.manual_seed(1)
    n_pages = [-(-length // backend.page_size) for length in lengths]
    order = random.Random(1).sample(range(sum(n_pages)), sum(n_pages))
    cache = backend.allocate((sum(n_pages), n_kv_heads, 24), dtype, CPU)
    forget(cache)
    pages = order[: n_pages[0]], order[n_pages[0] :]
    one, other = (Sequence(length, own, n_kv_heads) for length, own in zip(lengths, pages, strict=True))
    return cache, one, other
