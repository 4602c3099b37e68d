"""Drives an attention backend in tests: sequences cut into chunks, computed together, on any device."""

import itertools
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from model.attention import BACKENDS, choose
from model.attention.base import Attention
from model.attention.cache import LayerCache
from model.attention.paged import PagedAttention
from model.attention.rope import RopeRows
from model.attention.triton import TritonAttention
from model.batch import PageTable, Slice, StepBatch
from model.kernels.cpu import native
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.kernels.interpreter import unchecked

CPU = torch.device("cpu")
SIMULATED = "NORIA_TEST_SIMULATED"
"""The variable that says how kernels of a simulated GPU compute: "interpreted" by Triton, or "idle", not at all."""
SWIFT = sorted(BACKENDS.keys() - {"triton"})
"""Backends for tests of whole networks. Triton is too slow: under its interpreter, a program takes 10 ms."""
Heads = tuple[Tensor, Tensor, Tensor]
"""q [n, n_heads, head_dim], k and v [n, n_kv_heads, head_dim] of one sequence."""


def make(name: str) -> Attention:
    """The backend of this name, on the CPU: triton under its interpreter."""
    if name == "triton":
        unchecked()
    return PagedAttention(native.needed()) if name == "paged" else BACKENDS[name]()


def best() -> Attention:
    """The backend that "auto" chooses on this machine for float32."""
    return choose("auto", CPU, kernels=native.kernels())[1]


def unrotated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, int, RopeRows]:
    """The arguments of `Attention.attend` for heads that do not rotate."""
    rotations = torch.zeros(len(q), 2, q.shape[2] // 2, device=q.device)
    rotations[:, 0] = 1  # cosines
    return torch.cat((q, k, v), dim=1), q.shape[1], RopeRows(rotations, None)


def random_heads(
    lengths: Sequence[int], heads: tuple[int, int], width: int = 8, dtype: torch.dtype = torch.float32
) -> list[Heads]:
    torch.manual_seed(len(lengths) + sum(lengths))
    n_heads, n_kv_heads = heads
    return [tuple(torch.randn(n, h, width).to(dtype) for h in (n_heads, n_kv_heads, n_kv_heads)) for n in lengths]  # type: ignore[misc]


def cut(length: int, chunks: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of chunks that cycle until `length` is covered."""
    cuts: list[tuple[int, int]] = []
    start = 0
    for size in itertools.cycle(chunks):
        if start == length:
            return cuts
        cuts.append((start, min(start + size, length)))
        start = cuts[-1][1]
    raise AssertionError


def few(cuts: list[tuple[int, int]], n: int = 4) -> list[tuple[int, int]]:
    """The chunks with all but the last n joined into one."""
    return [(0, cuts[-n][0]), *cuts[-n:]] if len(cuts) > n + 1 else cuts


def attend(
    backend: Attention,
    data: Sequence[Heads],
    chunks: Sequence[int] | Sequence[Sequence[int]],
    window: int | None,
    *,
    ordered: bool = False,
    device: torch.device = CPU,
    kv_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Compute all sequences together on `device`, each cut into chunks; the result [n, n_heads, head_dim] of each.

    `chunks` are the sizes for all sequences, or for each. A slow backend computes only the last chunks one by one.
    The cache has the dtype `kv_dtype`, or that of the keys. It starts as NaN: a read of unwritten memory gives NaN.
    """
    size = backend.page_size
    lengths = [len(q) for q, _, _ in data]
    blocks = [-(-n // size) for n in lengths]
    order = torch.arange(sum(blocks)) if ordered else torch.randperm(sum(blocks))
    pages = [part.tolist() for part in order.split(blocks)]
    keys = data[0][1]
    cache = backend.allocate((sum(blocks), *keys.shape[1:]), kv_dtype or keys.dtype, device)
    forget(cache)
    results: list[list[Tensor]] = [[] for _ in data]
    sizes = [chunks if isinstance(chunks[0], int) else chunks[i] for i in range(len(data))]
    cuts = [cut(n, part) for n, part in zip(lengths, sizes, strict=True)]  # type: ignore[arg-type]
    if isinstance(backend, TritonAttention) and (device == CPU or os.environ.get(SIMULATED) == "interpreted"):
        cuts = [few(part) for part in cuts]
    for step in itertools.zip_longest(*cuts):
        active = [(i, *part) for i, part in enumerate(step) if part]
        slices = tuple(
            Slice(i, [0] * stop, lengths[i], start, stop, (_table(pages[i], start, window, size),), SamplingParams())
            for i, start, stop in active
        )
        inputs = pack(StepBatch(slices), size, [window], device)
        q, k, v = (torch.cat([data[i][part][start:stop] for i, start, stop in active]).to(device) for part in range(3))
        out = backend.attend(*unrotated(q, k, v), cache, backend.prepare(inputs.pools[0]))
        assert out.dtype == q.dtype
        for (i, *_), rows in zip(active, out.cpu().split([stop - start for _, start, stop in active]), strict=True):
            results[i].append(rows)
    return [torch.cat(parts) for parts in results]


def forget(cache: LayerCache) -> None:
    """Set every byte to 255, which is NaN in every float format."""
    for half in (cache.k, cache.v):
        half.view(torch.uint8).fill_(255)


def _table(pages: list[int], start: int, window: int | None, size: int) -> PageTable:
    """The pages that the engine still holds, without those that have left the window."""
    first = 0 if window is None else max(0, start - window + 1) // size
    return PageTable(first, pages[first:])
