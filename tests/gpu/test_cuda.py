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
from model.attention.reference import ReferenceAttention
from model.attention.sdpa import SdpaAttention
from model.batch import PageTable, Slice, StepBatch
from model.config import ModelConfig
from model.runner import ModelRunner, create
from model.sampling_params import SamplingParams
from tests.model.attending import CPU, attend, random_heads
from tests.model.driving import Driver, random_model, random_tensors, tiny

pytestmark = pytest.mark.gpu

WINDOW = 37
LENGTHS = (1, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 130)
PROMPTS = [[(7 * i + i * i + seed) % 64 for i in range(n)] for seed, n in enumerate((3, 50, WINDOW, 1))]


@pytest.fixture(scope="module")
def device() -> torch.device:
    return torch.device(os.environ.get("NORIA_TEST_DEVICE", "cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (6, 1)], ids=str)
@pytest.mark.parametrize("window", [None, 1, WINDOW])
@pytest.mark.parametrize("chunks", [[1], [7, 1], [500]], ids=str)
def test_attention(
    device: torch.device, chunks: list[int], window: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    """sdpa and reference, with packed sequences on scattered pages, against the reference on the CPU."""
    data = random_heads(LENGTHS, heads, width=64, dtype=dtype)
    expected = attend(ReferenceAttention(), data, [500], window)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for backend in (SdpaAttention(), ReferenceAttention()):
        for rows, wanted in zip(attend(backend, data, chunks, window, device=device), expected, strict=True):
            torch.testing.assert_close(rows, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize(
    "config",
    [tiny((WINDOW, None, 5), rope_fraction=0.5), tiny((WINDOW, WINDOW), n_experts=4, n_experts_per_token=2)],
    ids=["dense", "sparse"],
)
def test_logits(device: torch.device, config: ModelConfig, backend: str) -> None:
    """Chunks of sequences that ride together, against each alone and whole on the CPU."""
    reference = Driver(random_model(config), ReferenceAttention())
    driver = Driver(random_model(config, device=device), BACKENDS[backend](), shuffle=1)
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
    """All prompts served together, 7 tokens of each at a time; the tokens drawn after each."""
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
