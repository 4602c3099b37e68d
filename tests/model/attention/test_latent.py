"""Attention over latents: one key for all heads, whose first channels are the value, against float64 without pages."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from model.attention import sdpa
from model.attention.base import Attention
from model.attention.paged import PagedAttention
from model.attention.rope import RopeRows
from model.attention.sdpa import SdpaAttention, suits_expansion
from model.attention.triton import TritonAttention
from model.batch import PageTable, Slice, StepBatch
from model.config.latent import Heads
from model.kernels.cpu import native
from model.kernels.cpu.check import SEPARATE
from model.kernels.cpu.functions import Kernels
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention.attending import CPU, forget, make
from tests.model.kernels.interpreter import unchecked

SMALL_4, LARGE_3 = Heads(32, 1, 320, 256), Heads(128, 1, 576, 512)
ODD = [Heads(1, 1, 6, 2), Heads(3, 1, 14, 10), Heads(5, 1, 28, 20), Heads(8, 1, 96, 64), Heads(21, 1, 98, 90)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.int8: 5e-2}
LENGTHS = (150, 41)


class Case:
    """Two sequences of random queries and keys, their rotations and the factors of their queries."""

    def __init__(self, heads: Heads, lengths: tuple[int, int] = LENGTHS) -> None:
        torch.manual_seed(heads.head_dim)
        n = sum(lengths)
        self.heads, self.lengths = heads, lengths
        self.qk = torch.randn(n, heads.n_heads + 1, heads.head_dim)
        angles = torch.randn(n, heads.rope_dim // 2)
        self.rope = RopeRows(torch.stack((angles.cos(), angles.sin()), dim=1), 1 + torch.rand(n))

    def expected(self) -> Tensor:
        """[n, n_heads, latent] in float64."""
        cos, sin = self.rope.rotations[:, None].double().unbind(2)
        still, turning = self.qk.double().tensor_split((self.heads.latent,), dim=2)
        a, b = turning.chunk(2, dim=2)
        x = torch.cat((still, a * cos - b * sin, b * cos + a * sin), dim=2)
        assert self.rope.q_factors is not None
        q, k = x[:, :-1] * self.rope.q_factors[:, None, None], x[:, -1]
        parts = zip(q.split(self.lengths), k.split(self.lengths), strict=True)
        return torch.cat([self._one(*part) for part in parts])

    def _one(self, q: Tensor, k: Tensor) -> Tensor:
        scores = torch.einsum("qhd,kd->hqk", q, k) / self.heads.head_dim**0.5
        hidden = torch.ones(len(k), len(k)).triu(1).bool()
        return torch.einsum(
            "hqk,kd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), k[:, : self.heads.latent]
        )

    def found(self, backend: Attention, dtype: torch.dtype, chunks: Sequence[int]) -> Tensor:
        """All rows, computed in chunks of both sequences at once, in shuffled pages that nobody has written."""
        size = backend.page_size
        n_blocks = [-(-length // size) for length in self.lengths]
        pages = [part.tolist() for part in torch.randperm(sum(n_blocks)).split(n_blocks)]
        cache = backend.allocate((sum(n_blocks), *self.heads.cache_shape), dtype, CPU)
        forget(cache)
        results: list[list[Tensor]] = [[], []]
        done, step = [0, 0], 0
        while done != list(self.lengths):
            stops = [
                min(length, at + chunks[step % len(chunks)]) for at, length in zip(done, self.lengths, strict=True)
            ]
            parts = [(i, done[i], stops[i]) for i in range(2) if stops[i] > done[i]]
            slices = tuple(
                Slice(i, [0] * stop, self.lengths[i], start, stop, (PageTable(0, tuple(pages[i])),), SamplingParams())
                for i, start, stop in parts
            )
            offset = (0, self.lengths[0])
            rows = torch.cat([torch.arange(offset[i] + start, offset[i] + stop) for i, start, stop in parts])
            (inputs,) = pack(StepBatch(slices), size, [None], CPU).pools
            assert self.rope.q_factors is not None
            rope = RopeRows(self.rope.rotations[rows], self.rope.q_factors[rows])
            out = backend.attend(self.qk[rows], self.heads.n_heads, rope, cache, backend.prepare(inputs))
            lengths = [stop - start for _, start, stop in parts]
            for (i, _, stop), part in zip(parts, out.split(lengths), strict=True):
                results[i].append(part)
                done[i] = stop
            step += 1
        return torch.cat([torch.cat(part) for part in results])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [SMALL_4, *ODD], ids=str)
def test_the_kernels_agree_with_float64(heads: Heads, dtype: torch.dtype, kernels: Kernels) -> None:
    case = Case(heads)
    found = case.found(PagedAttention(kernels), dtype, (64, 1, 7))
    torch.testing.assert_close(found.double(), case.expected(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_the_widest_latents() -> None:
    case = Case(LARGE_3)
    found = case.found(PagedAttention(native.needed()), torch.bfloat16, (100,))
    torch.testing.assert_close(found.double(), case.expected(), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("heads", [SMALL_4, ODD[2]], ids=str)
def test_pytorch_agrees_with_float64(heads: Heads) -> None:
    case = Case(heads)
    for chunks in ((200,), (1,), (64, 1, 7)):
        found = case.found(SdpaAttention(), torch.float32, chunks)
        torch.testing.assert_close(found.double(), case.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [SMALL_4, ODD[1], ODD[3], ODD[4]], ids=str)
def test_a_row_has_the_same_bits(heads: Heads, dtype: torch.dtype, emulated: Kernels) -> None:
    """In chunks of any size, in every variant that fuses additions, and with the tiles of AMX."""
    case = Case(heads)
    fused = [native.variant(name) for name in native.available() if name not in SEPARATE]
    whole = case.found(PagedAttention(fused[0]), dtype, (200,))
    for kernels in (*fused, emulated):
        for chunks in ((1,), (7, 40)):
            assert torch.equal(case.found(PagedAttention(kernels), dtype, chunks), whole), kernels.variant


@pytest.mark.each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [*ODD[:3], Heads(36, 1, 28, 20)], ids=str)
def test_triton_agrees_with_float64(heads: Heads, dtype: torch.dtype) -> None:
    """Under its interpreter. 36 heads are three groups of 12; slices of up to 16 tokens have other kernels."""
    case = Case(heads, (51, 20))
    found = case.found(make("triton"), dtype, (30, 1, 7))
    torch.testing.assert_close(found.double(), case.expected(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_triton_at_the_sizes_of_small_4() -> None:
    case = Case(SMALL_4, (20, 3))
    found = case.found(make("triton"), torch.float32, (19, 1))
    torch.testing.assert_close(found.double(), case.expected(), atol=1e-5, rtol=1e-5)


def test_deterministic_triton_has_the_same_bits_in_any_chunks() -> None:
    unchecked()
    case, backend = Case(ODD[2], (150, 9)), TritonAttention(deterministic=True)
    whole = case.found(backend, torch.float32, (150,))
    assert torch.equal(case.found(backend, torch.float32, (100, 1, 16, 17)), whole)


class Weights(nn.Module):
    """Random `HeadsOfLatents`."""

    def __init__(self, n_heads: int, nope: int, latent: int, value_dim: int, *, expands: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.value_dim, self.expands, self.pieces = value_dim, expands, list[int]()
        self.keys, self.of_values = torch.randn(n_heads, latent, nope), torch.randn(n_heads, latent, value_dim)

    def absorb(self, q: Tensor) -> Tensor:
        return torch.einsum("thn,hcn->thc", q, self.keys)

    def values(self, latents: Tensor) -> Tensor:
        return torch.einsum("thc,hcv->thv", latents, self.of_values)

    def expand(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        keys = torch.einsum("sc,hcn->shn", latents, self.keys[heads])
        self.pieces.append(keys.shape[1])
        return keys, torch.einsum("sc,hcv->shv", latents, self.of_values[heads])


@pytest.mark.parametrize(("piece", "pieces"), [(2**25, [3]), (2 * 60 * 120, [2, 1]), (1, [1, 1, 1])])
@pytest.mark.parametrize("start", [0, 11])
def test_both_forms_agree(start: int, piece: int, pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Absorbed, and expanded as a long slice is; the first has no `expand` to call. Heads are computed in pieces.

    A head makes at most 120 values for each of 60 keys: 12, 20 and 10 of keys and values and 49 or 60 scores; absorbed,
    98 or 120 of scores and masks.
    """
    monkeypatch.setattr(sdpa, "PIECE", piece)
    torch.manual_seed(2)
    n, n_heads, nope, rope, latent, value_dim = 60, 3, 12, 8, 20, 10
    assert suits_expansion(n - start, latent, nope, value_dim)
    q, key = torch.randn(n, n_heads, nope + rope), torch.randn(n, latent + rope)
    angles, results = torch.randn(n, rope // 2), []
    rotations, factors = torch.stack((angles.cos(), angles.sin()), dim=1), 1 + torch.rand(n)
    for expands in (True, False):
        backend, heads = SdpaAttention(), Weights(n_heads, nope, latent, value_dim, expands=expands)
        cache = backend.allocate((2, 1, latent + rope, latent), torch.float32, CPU)
        for first, stop in ((0, start), (start, n)) if start else ((0, n),):
            item = Slice(0, [0] * stop, n, first, stop, (PageTable(0, (1, 0)),), SamplingParams())
            (inputs,) = pack(StepBatch((item,)), backend.page_size, [None], CPU).pools
            rows, prepared = slice(first, stop), backend.prepare(inputs)
            turned = RopeRows(rotations[rows], factors[rows])
            found = backend.attend_latent(q[rows], key[rows], heads, turned, cache, prepared)
        assert heads.pieces == (pieces if expands else [])
        results.append(found)
    assert results[0].shape == (n - start, n_heads, value_dim)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_long_prompts_of_small_4_expand() -> None:
    assert [suits_expansion(n, 256, 64, 128) for n in (1, 153, 154, 512)] == [False, False, True, True]


def test_sizes_that_the_kernels_do_not_serve() -> None:
    for backend, limit in ((PagedAttention, "keys of up to 576"), (TritonAttention, "latents of up to 512")):
        assert backend.unfit(SMALL_4) is None
        assert backend.unfit(LARGE_3) is None
        why = backend.unfit(Heads(16, 1, 640, 512 + (backend is TritonAttention)))
        assert why is not None
        assert limit in why
