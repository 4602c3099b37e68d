"""The network on a GPU against the same network on the CPU. Run with `pytest -m gpu tests/gpu`.

Needs torch, numpy, safetensors and pytest only; without pytest-timeout add `-W ignore::pytest.PytestConfigWarning`.
NORIA_TEST_DEVICE=cpu runs the same tests without a GPU.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model.attention import BACKENDS
from model.attention.base import Attention
from model.attention.inputs import PoolInputs
from model.attention.rope import RopeRows
from model.attention.triton import TritonAttention
from model.batch import PageTable, Slice, StepBatch
from model.config.model import ModelConfig, QueryTemperature, Rope
from model.loading import create
from model.sampling_params import SamplingParams
from model.step.packing import pack
from model.step.runner import ModelRunner
from tests.gpu.cases import DTYPES, alternating, combined, sized
from tests.model.attention.attending import CPU, attend, make, random_heads
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import Driver, random_model, random_tensors, tiny

pytestmark = pytest.mark.gpu

WINDOW = 37
LONG = sized(1300, 320)
WIDTHS = [16, 32, 80, 96, 128, 256]
LENGTHS = (1, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 130)
PROMPTS = [[(7 * i + i * i + seed) % 64 for i in range(n)] for seed, n in enumerate((3, 50, WINDOW, 1))]


@pytest.fixture(scope="module")
def device() -> torch.device:
    return torch.device(os.environ.get("NORIA_TEST_DEVICE", "cuda"))


needs_gpu = pytest.mark.skipif(
    os.environ.get("NORIA_TEST_DEVICE") == "cpu",
    reason="there are no graphs on a CPU, and Triton's interpreter is slow",
)
TOLERANCES = {torch.float32: 5e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}


def on(device: torch.device, name: str, dtype: torch.dtype = torch.float32) -> Attention:
    """The backend of this name, if it serves `dtype` on `device`."""
    if (why := BACKENDS[name].obstacle(device, dtype)) is not None:
        pytest.skip(f"{name} {why}")
    return make(name)


@pytest.mark.parametrize(
    ("chunks", "window", "heads", "dtype"),
    combined([(1,), (7, 1), (500,)], [None, 1, WINDOW], [(8, 2), (4, 4), (6, 1)], DTYPES),
    ids=str,
)
@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_attention(
    device: torch.device,
    name: str,
    chunks: Sequence[int],
    window: int | None,
    heads: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    """Every backend agrees with the reference on the CPU, for packed sequences on scattered pages."""
    backend = on(device, name, dtype)
    data = random_heads(LENGTHS, heads, width=64, dtype=dtype)
    expected = attend(ReferenceAttention(), data, [500], window)
    for rows, wanted in zip(attend(backend, data, chunks, window, device=device), expected, strict=True):
        torch.testing.assert_close(rows, wanted, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize(("width", "dtype"), alternating(WIDTHS, DTYPES), ids=str)
def test_head_dims_and_long_sequences(device: torch.device, width: int, dtype: torch.dtype) -> None:
    """The keys have several parts, and pages have any size."""
    backend = on(device, "triton", dtype)
    data = random_heads([LONG, 40], (4, 1), width, dtype)
    for window in (None, LONG // 2):
        expected = attend(ReferenceAttention(), data, [LONG], window)
        for rows, wanted in zip(
            attend(backend, data, [LONG - 100, 90, 1], window, device=device), expected, strict=True
        ):
            torch.testing.assert_close(rows, wanted, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [64, 128])
def test_float8_keys_and_values(device: torch.device, width: int, dtype: torch.dtype) -> None:
    backend = on(device, "triton", torch.float8_e4m3fn)
    data = random_heads([100, 40], (4, 2), width, dtype)
    data[0][1][5] = 0.0
    data[0][2][5] = 1000.0  # more than fits: 448
    expected = attend(ReferenceAttention(), data, [500], None, kv_dtype=torch.float8_e4m3fn)
    found = attend(backend, data, [80, 1, 10], None, device=device, kv_dtype=torch.float8_e4m3fn)
    for rows, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(rows, wanted, atol=3e-2, rtol=3e-2)


@needs_gpu
@pytest.mark.parametrize(
    ("chunks", "window"), combined([[1], [LONG - 20, 1], [LONG - 50, 30, 5]], [None, LONG // 2 + 50]), ids=str
)
def test_bits_do_not_depend_on_who_is_beside(device: torch.device, window: int | None, chunks: list[int]) -> None:
    backend = on(device, "triton", torch.bfloat16)
    data = random_heads([LONG, LONG, 3, LONG // 2], (8, 2), sized(128, 16), torch.bfloat16)
    (alone,) = attend(backend, data[:1], chunks, window, device=device)
    beside = [chunks, [LONG], [1], [LONG // 2 - 1, 1]]
    assert torch.equal(attend(backend, data, beside, window, device=device)[0], alone)


@needs_gpu
@pytest.mark.parametrize(
    ("window", "heads", "dtype"),
    combined([None, LONG // 2 + 50], [(8, 2), (4, 4), (5, 1)], [torch.bfloat16, torch.float32]),
    ids=str,
)
def test_deterministic_bits_do_not_depend_on_chunks(
    device: torch.device, window: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    on(device, "triton", dtype)
    backend = TritonAttention(deterministic=True)
    data = random_heads([LONG], heads, sized(128, 16), dtype)
    (whole,) = attend(backend, data, [LONG], window, device=device)
    for chunks in ([1], [7], [17], [LONG - 300, 250, 1]):
        assert torch.equal(attend(backend, data, chunks, window, device=device)[0], whole)


@needs_gpu
@pytest.mark.parametrize("window", [None, 100])
def test_a_captured_step_serves_shorter_ones(device: torch.device, window: int | None) -> None:
    """A CUDA graph of four sequences of up to 2,000 tokens is replayed for two. It gives the bits of a plain step."""
    backend = on(device, "triton", torch.bfloat16)

    def step(lengths: Sequence[int]) -> PoolInputs:
        items = []
        for i, n in enumerate(lengths):
            first = 0 if window is None else max(0, n - window) // 32
            pages = range(64 * i + first, 64 * i + 64)
            items.append(Slice(i, [0] * n, n, n - 1, n, (PageTable(first, pages),), SamplingParams()))
        return pack(StepBatch(tuple(items)), 32, [window], device).pools[0]

    cache = backend.allocate((256, 2, 128), torch.bfloat16, device)
    cache.k.normal_()
    cache.v.normal_()
    qkv = torch.randn(4, 8 + 2 * 2, 128, dtype=torch.bfloat16, device=device)
    rope = RopeRows(torch.randn(4, 2, 64, device=device), torch.rand(4, device=device))
    longest, shorter = step([2000] * 4), step([700, 30])
    backend.attend(qkv, 8, rope, cache, backend.prepare(longest))  # compiles
    prepared = backend.prepare(longest)  # not the one above: it keeps its plan, which then is not in the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = backend.attend(qkv, 8, rope, cache, prepared)
    longest.slots.fill_(-1)
    longest.table.zero_()
    longest.pages.zero_()
    longest.slots[:2], longest.table[:2] = shorter.slots, shorter.table
    longest.pages[: len(shorter.pages)] = shorter.pages
    before = cache.k[2 * 64 :].clone()
    graph.replay()
    expected = backend.attend(qkv[:2], 8, RopeRows(*(part[:2] for part in rope)), cache, backend.prepare(shorter))
    assert torch.equal(captured[:2], expected)
    assert torch.equal(cache.k[2 * 64 :], before)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize(
    "config",
    [
        tiny(
            (WINDOW, None, 5),
            rope_fraction=0.5,
            full_rope=Rope(1e6, 8),
            query_temperature=QueryTemperature(16, 0.5),
        ),
        tiny((WINDOW, WINDOW), n_experts=4, n_experts_per_token=2),
    ],
    ids=["dense", "sparse"],
)
def test_logits(device: torch.device, config: ModelConfig, backend: str) -> None:
    """Sequences in chunks are packed together. Each agrees with the CPU, which computes it alone and whole."""
    reference = Driver(random_model(config), ReferenceAttention())
    driver = Driver(random_model(config, device=device), on(device, backend), shuffle=1)
    riders = [driver.start(prompt) for prompt in PROMPTS]
    parts: list[list[torch.Tensor]] = [[] for _ in riders]
    while waiting := [i for i, rider in enumerate(riders) if rider.done < len(rider.tokens)]:
        step = [(riders[i], min(7, len(riders[i].tokens) - riders[i].done)) for i in waiting]
        for i, logits in zip(waiting, driver.step(step), strict=True):
            parts[i].append(logits.cpu())
    for prompt, mine in zip(PROMPTS, parts, strict=True):
        torch.testing.assert_close(torch.cat(mine), reference.whole(prompt), atol=2e-4, rtol=2e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a windowed and a full layer, in the native format."""
    directory = tmp_path_factory.mktemp("tiny")
    config = tiny((WINDOW, None))
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "norm_eps", "vocab_size", "dtype")
    params = {name: getattr(config, name) for name in names}
    params |= {"sliding_window": [WINDOW, None], "max_seq_len": 128}
    (directory / "params.json").write_text(json.dumps(params))
    save_file(dict(random_tensors(config)), directory / "consolidated.safetensors")
    return directory


def start(directory: Path, device: torch.device, dtype: str = "float32") -> ModelRunner:
    options = {"max_sequences": 8, "cache_memory": 2**21, "dtype": dtype, "device": device.type}
    return create(lambda stage, done: None, model=str(directory), **options)


def generate(runner: ModelRunner, params: SamplingParams) -> list[list[int]]:
    """The tokens sampled after each prompt, with all prompts served together, 7 tokens of each in a step."""
    sequences = [list(prompt) for prompt in PROMPTS]
    done = [0] * len(PROMPTS)
    while running := [i for i, prompt in enumerate(PROMPTS) if len(sequences[i]) < len(prompt) + params.max_tokens]:
        slices = [_slice(runner, i, sequences[i], done[i], params) for i in running]
        for i, item, output in zip(running, slices, runner.step(StepBatch(tuple(slices))).slices, strict=True):
            done[i] = item.stop
            sequences[i] += output.tokens
    return [tokens[len(prompt) :] for tokens, prompt in zip(sequences, PROMPTS, strict=True)]


def _slice(runner: ModelRunner, index: int, tokens: Sequence[int], start: int, params: SamplingParams) -> Slice:
    tables = tuple(PageTable(0, range(4 * index, 4 * index + 4)) for _ in runner.info.pools)
    stop = min(start + 7, len(tokens))
    return Slice(index, list(tokens), len(PROMPTS[index]), start, stop, tables, params)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=40),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=20, repetition_penalty=1.1, seed=3, max_tokens=40),
    ],
    ids=["greedy", "seeded"],
)
def test_same_tokens_as_on_the_cpu(device: torch.device, checkpoint: Path, params: SamplingParams) -> None:
    tokens = generate(start(checkpoint, device), params)
    assert tokens == generate(start(checkpoint, CPU), params)
    assert [len(part) for part in tokens] == [40] * len(PROMPTS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(device: torch.device, checkpoint: Path, dtype: str) -> None:
    params = SamplingParams(prompt_logprobs=0, max_tokens=0)
    found = []
    for runner in (start(checkpoint, device, dtype), start(checkpoint, CPU)):
        tables = tuple(PageTable(0, range(4)) for _ in runner.info.pools)
        batch = StepBatch((Slice(0, PROMPTS[1], 50, 0, 50, tables, params),))
        found.append([item.logprob for item in runner.step(batch).slices[0].prompt_logprobs])
    assert len(found[0]) == 49
    assert found[0] == pytest.approx(found[1], abs=0.3)


def test_the_gpu_is_named(device: torch.device, checkpoint: Path) -> None:
    expected = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    assert start(checkpoint, device).info.description["device"] == expected
