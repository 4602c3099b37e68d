"""Attention by the compiled kernels, every variant this processor runs: the rule, and the same bits in any step."""

import threading
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from model.attention.paged import PagedAttention
from model.config.cache_formats import CACHE_FORMATS
from model.kernels.cpu import native
from model.kernels.cpu.records import struct
from model.machine.device import name_of
from model.machine.host import choose_threads
from tests.model.attention.attending import CPU, forget, random_heads
from tests.model.attention.attending import attend as attend_in_chunks
from tests.model.attention.dense import dense
from tests.model.attention.two_sequences import attend, two_sequences

DTYPES = [torch.bfloat16, torch.float32, torch.int8]


@pytest.fixture(params=native.available())
def backend(request: pytest.FixtureRequest) -> PagedAttention:
    return PagedAttention(native.variant(request.param))


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [n, heads, head_dim] after the cache has stored it: int8 has one scale for each position and head."""
    if dtype is not torch.int8:
        return x.to(dtype).double()
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    return (x.double() / scale).round() * scale


@pytest.mark.skipif(not native.available(), reason="needs the compiled library")
@pytest.mark.parametrize(("n_threads", "n_pieces"), [(2, 1), (64, 1), (65, 4)])
def test_long_tasks_are_cut_where_there_are_fewer_than_threads(n_threads: int, n_pieces: int) -> None:
    """8 sequences of 8 key heads that decode: 64 tasks of 64 pages."""
    kernels, n = native.needed(), 8
    spans = torch.tensor([[row, 1, 2047, 0, 64 * row] for row in range(n)])
    call = struct("attention_call")(n_rows=n, n_heads=32, n_kv_heads=8, head_dim=64)
    before = native.use_threads(n_threads)
    try:
        kernels.plan(call, spans)
    finally:
        native.use_threads(choose_threads())
    assert before == n_threads
    assert call.n_tasks == n * n_pieces


TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.int8: 4e-2}


@pytest.mark.skipif(not native.available(), reason="needs the compiled library")
@pytest.mark.parametrize(
    ("heads", "width", "window", "lengths", "chunks"),
    [
        ((1, 1), 2, None, [700, 1], [1000]),
        ((3, 3), 6, 600, [700, 33], [*[1] * 60, 500]),
        ((10, 2), 24, 129, [700, 150], [17]),
        ((64, 1), 80, 33, [120], [16]),
        ((17, 1), 96, 128, [199, 64], [40, 149, 1]),
        ((8, 1), 512, 32, [66], [500]),
        ((21, 3), 72, 2, [90, 5, 31], [16]),
        ((4, 2), 128, 127, [180], [1000]),
        ((1, 1), 64, 1, [700], [500]),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_shape_in_every_variant(
    dtype: torch.dtype, heads: tuple[int, int], width: int, window: int | None, lengths: list[int], chunks: list[int]
) -> None:
    """The corners: heads of 2 and of 512, groups of 64, windows around a page and a part, tails after every chunk."""
    data = random_heads(lengths, heads, width)
    expected = [dense((q, stored(k, dtype), stored(v, dtype)), window) for q, k, v in data]
    for variant in native.available():
        results = attend_in_chunks(PagedAttention(native.variant(variant)), data, chunks, window, kv_dtype=dtype)
        for result, rows in zip(results, expected, strict=True):
            torch.testing.assert_close(result.double(), rows, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_weights_of_bytes_are_relative_to_their_page(backend: PagedAttention) -> None:
    """A key that gets nearly all the weight costs the values of other pages no precision."""
    q, k, v = random_heads([100], (1, 1), 16)[0]
    k[:], v[:64] = 0, v[:64] * 1000
    k[99], q[99] = 1, 1  # exp(4) = 54.6 times the weight of each other key
    (result,) = attend_in_chunks(backend, [(q, k, v)], [100], None, kv_dtype=torch.int8)
    expected = dense((q, k, stored(v, torch.int8)), None)
    torch.testing.assert_close(result.double()[99], expected[99], rtol=0.01, atol=0.01 * expected[99].abs().max())


# The same bits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 5, 40])
def test_same_bits_in_any_step(backend: PagedAttention, window: int | None, dtype: torch.dtype) -> None:
    cache, one, other = two_sequences(backend, dtype, (150, 131))
    (whole,) = attend(backend, cache, [(one, 0, 150)], window)
    assert whole.isfinite().all()
    for sizes in ([33, 1, 1, 60, 55], [64, 86]):
        forget(cache)
        for start, stop in pairwise([0, *accumulate(sizes)]):
            beside = [(other, 0, 131)] if start % 3 == 0 else []
            rows = attend(backend, cache, [*beside, (one, start, stop)], window)[-1]
            assert torch.equal(rows, whole[start:stop])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 700])
def test_same_bits_whether_threads_share_a_row_or_not(
    backend: PagedAttention, window: int | None, dtype: torch.dtype
) -> None:
    """Alone, a row's keys are split over threads; in a long chunk and beside many rows they are not."""
    cache, one, other = two_sequences(backend, dtype, (1300, 600))
    (whole,) = attend(backend, cache, [(one, 0, 1300)], window)
    for last in (1, 511, 512, 513, 1023, 1024, 1025, 1300):
        for first in (last - 1, max(0, last - 20)):
            (alone,) = attend(backend, cache, [(one, first, last)], window)
            beside = attend(backend, cache, [(one, first, last), (other, 0, 600)], window)[0]
            assert torch.equal(alone, whole[first:last])
            assert torch.equal(beside, alone)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_do_not_change_bits(backend: PagedAttention, n_threads: int) -> None:
    cache, one, other = two_sequences(backend, torch.bfloat16, (1100, 90))
    expected = attend(backend, cache, [(one, 0, 1100), (other, 0, 90)], None)
    before = native.use_threads(2)
    try:
        assert native.use_threads(n_threads) == n_threads
        for _ in range(20):
            (row,) = attend(backend, cache, [(one, 1099, 1100)], None)
            assert torch.equal(row, expected[0][-1:])
        for found, wanted in zip(attend(backend, cache, [(one, 0, 1100), (other, 0, 90)], None), expected, strict=True):
            assert torch.equal(found, wanted)
    finally:
        native.use_threads(before)


def test_threads_may_be_changed_from_another_thread(backend: PagedAttention) -> None:
    """The number of threads decides how tasks are bundled. A running call keeps the number that it started with."""
    data = random_heads([256], (16, 8), 64)
    expected = attend_in_chunks(backend, data, [256], None)
    before, stop = native.use_threads(2), threading.Event()

    def change() -> None:
        while not stop.is_set():
            native.use_threads(1)
            native.use_threads(5)

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(40):
            found = attend_in_chunks(backend, data, [256], None)
            assert all(map(torch.equal, found, expected))
    finally:
        stop.set()
        other.join()
        native.use_threads(before)


def test_positions_beyond_32_bits(backend: PagedAttention) -> None:
    """The same window, 2^31 - 512 and 2^32 positions later: blocks and splits do not change."""
    cache, one, _ = two_sequences(backend, torch.bfloat16, (600, 32))
    expected = [attend(backend, cache, [(one, 0, 500)], 40), attend(backend, cache, [(one, 500, 600)], 40)]
    for shift in (2**31 - 512, 2**32):
        forget(cache)
        for (start, stop), (wanted,) in zip(((0, 500), (500, 600)), expected, strict=True):
            (rows,) = attend(backend, cache, [(one, start, stop)], 40, shift if start else 0)
            assert torch.equal(rows, wanted)


def test_bytes_take_about_half_the_memory_of_bfloat16(backend: PagedAttention) -> None:
    """A float for each position and head; heads are rounded up to 16."""
    assert [CACHE_FORMATS[name].head_bytes(64) for name in ("bfloat16", "float32", "int8")] == [128, 256, 68]
    assert CACHE_FORMATS["int8"].head_bytes(24) == 36
    for dtype in DTYPES:
        cache = backend.allocate((3, 2, 24), dtype, CPU)
        assert cache.k.nbytes + cache.v.nbytes == 2 * 3 * 32 * 2 * CACHE_FORMATS[name_of(dtype)].head_bytes(24)
