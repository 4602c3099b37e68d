"""Attention by Triton's kernels, under its interpreter: shapes, float8, and what bits depend on."""

import random
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from model.attention import tiles
from model.attention import triton as attention
from model.attention.inputs import PoolInputs, Span
from model.attention.rope import RopeRows
from model.attention.tiles import Bounds, Tiles
from model.attention.triton import TritonAttention
from model.batch import PageTable, Slice, StepBatch
from model.config.model import QueryTemperature, Rope
from model.errors import OptionError
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention.attending import (
    CPU,
    attend,
    forget,
    make,
    random_heads,
    unrotated,
)
from tests.model.attention.dense import dense
from tests.model.attention.reference import ReferenceAttention
from tests.model.attention.two_sequences import attend as attend_step
from tests.model.attention.two_sequences import two_sequences
from tests.model.driving import Driver, random_model, tiny
from tests.model.kernels.interpreter import look_for_overflow, unchecked

FP8 = torch.float8_e4m3fn
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3, FP8: 1e-5}


@pytest.fixture
def backend() -> TritonAttention:
    made = make("triton")
    assert isinstance(made, TritonAttention)
    return made


def small(monkeypatch: pytest.MonkeyPatch, split: int) -> None:
    """Let short sequences have several parts of `split` keys, groups of two parts, and sections of two groups."""
    for module in (attention, tiles):
        monkeypatch.setattr(module, "SPLIT", split)
    monkeypatch.setattr(attention, "FAN", 2)
    monkeypatch.setattr(attention, "tiles_of", lambda *_: Tiles(16, 16, 4, 3))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 16)


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x after the cache has stored it."""
    return (x.clamp(-448, 448) if dtype is FP8 else x).to(dtype).double()


SHAPES = [(2, 1), (16, 17), (24, 2), (64, 3), (80, 5), (96, 1), (128, 4), (256, 8)]
"""head_dim, query heads a key head."""


@pytest.mark.parametrize(("number", "width", "group"), [(i, *shape) for i, shape in enumerate(SHAPES)])
def test_any_shape(number: int, width: int, group: int, small_parts: None) -> None:
    """Four shapes by either set of tiles, in each format."""
    unchecked()
    backend, dtype = TritonAttention(deterministic=number >= 4), [*TOLERANCES][number % 4]
    pick = random.Random(number)
    window = pick.choice([None, 1, 2, 31, 32, 33, 64, 100])
    lengths = [pick.randrange(40, 70), pick.randrange(1, 20)]
    n_kv_heads = 1 + number % 2
    data = random_heads(lengths, (n_kv_heads * group, n_kv_heads), width, torch.float32 if dtype is FP8 else dtype)
    if dtype is FP8:  # whose rounding the interpreter gets wrong
        data = [(q, stored(k, dtype).float(), stored(v, dtype).float()) for q, k, v in data]
    chunks = [pick.randrange(20, 40), pick.randrange(1, 17), 100]
    results = attend(backend, data, chunks, window, kv_dtype=dtype)
    for (q, k, v), result in zip(data, results, strict=True):
        expected = dense((q, stored(k, dtype), stored(v, dtype)), window)
        torch.testing.assert_close(result.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_long_sequence(backend: TritonAttention) -> None:
    """The parts have their real size: the second begins at 128."""
    ((q, k, v),) = data = random_heads([140], (1, 1), 8)
    (result,) = attend(backend, data, [125, 1, 1, 1, 2, 10], None)
    torch.testing.assert_close(result.double(), dense((q, k, v), None), atol=1e-5, rtol=1e-5)


def test_what_is_too_large_for_float8_is_stored_as_its_largest(backend: TritonAttention) -> None:
    q, k, v = random_heads([40], (2, 1), 8)[0]
    k, v = stored(k, FP8).float(), stored(v, FP8).float()
    k[3], v[3] = 0, torch.tensor([448, 449, 1000, 1e9, -448, -449, -1e9, 1])
    for chosen in (backend, ReferenceAttention()):
        (result,) = attend(chosen, [(q, k, v)], [30, 10], None, kv_dtype=FP8)
        expected = dense((q, stored(k, FP8), stored(v, FP8)), None)
        torch.testing.assert_close(result.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("cache_dtype", "tempered"), [(torch.float32, True), (torch.bfloat16, False)])
def test_rotated_as_the_reference_rotates(backend: TritonAttention, cache_dtype: torch.dtype, tempered: bool) -> None:
    """This holds also if activations have more bits than the cache, and with a query temperature."""
    qkv, rope = torch.randn(45, 4 + 2 * 2, 12), RopeRows(torch.randn(45, 2, 6), torch.rand(45) if tempered else None)
    item = Slice(0, [0] * 45, 45, 0, 45, (PageTable(0, (1, 0)),), SamplingParams())
    results = []
    for chosen in (backend, ReferenceAttention()):
        (inputs,) = pack(StepBatch((item,)), chosen.page_size, [20], CPU).pools
        cache = chosen.allocate((2, 2, 12), cache_dtype, CPU)
        forget(cache)
        results.append(chosen.attend(qkv.clone(), 4, rope, cache, chosen.prepare(inputs)))
    tolerance = 1e-4 if cache_dtype is torch.float32 else 3e-2
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


def test_whole_network(backend: TritonAttention) -> None:
    config = tiny((37, None, 5), rope_fraction=0.5, full_rope=Rope(1e6, 8), query_temperature=QueryTemperature(16, 0.5))
    tokens = [(7 * i + i * i) % 64 for i in range(59)]
    expected = Driver(random_model(config), ReferenceAttention()).whole(tokens)
    driver = Driver(random_model(config), backend, shuffle=1)
    rider = driver.start(tokens)
    parts = [driver.step([(rider, n)])[0] for n in (40, 1, 17, 1)]
    torch.testing.assert_close(torch.cat(parts), expected, atol=2e-4, rtol=2e-4)


def test_too_wide_heads_and_groups_are_refused(backend: TritonAttention) -> None:
    for heads, width in (((1, 1), 258), ((65, 1), 8)):
        with pytest.raises(OptionError, match="--attention triton serves heads of up to 256 and groups of up to 64"):
            attend(backend, random_heads([1], heads, width), [1], None)


# The same bits


def rows(backend: TritonAttention, sizes: list[int], window: int | None, lengths: tuple[int, int]) -> Tensor:
    """The rows of the first sequence, computed in chunks of these sizes. Some steps also hold the second sequence."""
    cache, one, other = two_sequences(backend, torch.float32, lengths, n_kv_heads=1)
    found = []
    for number, (start, stop) in enumerate(pairwise([0, *accumulate(sizes)])):
        beside = [(other, 0, lengths[1])] if number % 3 == 2 else []
        found.append(attend_step(backend, cache, [*beside, (one, start, stop)], window)[-1])
    return torch.cat(found)


@pytest.mark.parametrize("window", [None, 20])
def test_same_bits_beside_others_and_for_any_few_tokens(
    backend: TritonAttention, window: int | None, small_parts: None
) -> None:
    """A slice is short up to 16 tokens: drafts, and the ends of prompts."""
    expected = rows(backend, [36, *[1] * 5], window, (41, 9))
    assert expected.isfinite().all()
    for sizes in ([36, 5], [36, 2, 3]):
        assert torch.equal(rows(backend, sizes, window, (41, 9)), expected)


@pytest.mark.parametrize("window", [None, 20])
def test_deterministic_gives_the_same_bits_in_any_chunks(window: int | None, small_parts: None) -> None:
    unchecked()
    backend = TritonAttention(deterministic=True)
    expected = rows(backend, [50], window, (50, 9))
    assert expected.isfinite().all()
    for sizes in ([30, 4, 16], [17, 33]):  # 16 tokens are a short slice, which sees four parts
        assert torch.equal(rows(backend, sizes, window, (50, 9)), expected)


def test_same_bits_however_the_keys_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs compute parts, groups, sections, or all keys: 9, 5, 3 and 1 of the first slice, 1 of the second.

    The window begins inside of the second part of a group.
    """
    small(monkeypatch, 32)
    unchecked()
    items = [Slice(0, [0] * 300, 300, 297, 300, (PageTable(0, range(10)),), SamplingParams())]
    items.append(Slice(1, [0] * 21, 21, 20, 21, (PageTable(0, (10,)),), SamplingParams()))
    (inputs,) = pack(StepBatch(tuple(items)), 32, [250], CPU).pools
    torch.manual_seed(0)
    backend = TritonAttention()
    cache = backend.allocate((11, 1, 8), torch.float32, CPU)
    cache.k[:], cache.v[:] = torch.randn(2, 11, 32, 1, 8)
    data, found = torch.randn(3, 4, 1, 8), []
    for n_items, unit in ((11, 32), (9, 64), (5, 128), (3, 2**30)):
        monkeypatch.setattr(attention, "bounds", lambda *_, n=n_items: Bounds(n, 3 * n))
        prepared = backend.prepare(inputs)
        found.append(backend.attend(*unrotated(*data), cache, prepared))
        (plan,) = prepared.plans.values()
        assert plan.firsts[:, 1].tolist() == [unit] * 2
    assert found[0].isfinite().all()
    assert all(torch.equal(rows, found[0]) for rows in found)


def test_positions_beyond_32_bits() -> None:
    """The same window, 2^31 and 2^32 positions later; the interpreter looks for overflow here."""
    look_for_overflow(True)
    backend = TritonAttention()
    cache, one, _ = two_sequences(backend, torch.float32, (48, 32), n_kv_heads=1)
    steps = ((0, 20), (20, 38), (38, 48))
    expected = [attend_step(backend, cache, [(one, *step)], 16) for step in steps]
    for shift in (2**31, 2**32):
        forget(cache)
        for (start, stop), (wanted,) in zip(steps, expected, strict=True):
            (found,) = attend_step(backend, cache, [(one, start, stop)], 16, shift if start else 0)
            assert torch.equal(found, wanted)


# As a CUDA graph replays it


def padded(inputs: PoolInputs, n_rows: int, n_pages: int, spans: tuple[Span, ...]) -> PoolInputs:
    """`inputs` in tensors for n_rows slices of one token; `spans` are the longest that these may hold."""
    slots = torch.full((n_rows,), -1)
    slots[: len(inputs.slots)] = inputs.slots
    pages = torch.zeros(n_pages, dtype=torch.int64)
    pages[: len(inputs.pages)] = inputs.pages
    table = torch.zeros(n_rows, 5, dtype=torch.int64)
    table[: len(inputs.table)] = inputs.table
    return replace(inputs, slots=slots, pages=pages, table=table, numbers=np.array(spans))


@pytest.fixture
def decoding() -> tuple[PoolInputs, list[int]]:
    """Two sequences at positions 100 and 20, on pages 1..4 and 5."""
    items = [Slice(0, [0] * 101, 101, 100, 101, (PageTable(0, (1, 2, 3, 4)),), SamplingParams())]
    items.append(Slice(1, [0] * 21, 21, 20, 21, (PageTable(0, (5,)),), SamplingParams()))
    return pack(StepBatch(tuple(items)), 32, [None], CPU).pools[0], [1, 2, 3, 4, 5]


def test_a_step_filled_up_to_a_larger_one(
    backend: TritonAttention, decoding: tuple[PoolInputs, list[int]], small_parts: None
) -> None:
    """With grids of the longest step and padding rows the bits are the same, and nothing else is written."""
    inputs, pages = decoding
    torch.manual_seed(0)
    cache = backend.allocate((6, 1, 8), torch.float32, CPU)
    forget(cache)
    cache.k[pages], cache.v[pages] = torch.randn(2, 5, 32, 1, 8)
    other = backend.allocate((6, 1, 8), torch.float32, CPU)
    other.k[:], other.v[:] = cache.k, cache.v
    q, k, v = torch.randn(3, 4, 1, 8)
    expected = backend.attend(*unrotated(q[:2], k[:2], v[:2]), cache, backend.prepare(inputs))
    longest = Span(row=0, n_queries=1, start=400, first_key=0, page=0)
    prepared = backend.prepare(padded(inputs, 4, 60, (longest,) * 4))
    found = backend.attend(*unrotated(q, k, v), other, prepared)
    assert torch.equal(found[:2], expected)
    for one, same in ((cache.k, other.k), (cache.v, other.v)):
        assert torch.equal(one.view(torch.int32), same.view(torch.int32))
