"""Pools from the memory that the largest step leaves, on a fake device."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from model import loading, warming
from model.attention.tiles import Gpu, scratch_bytes
from model.batch import PoolSpec, RunnerInfo, StepBatch
from model.config.model import ModelConfig
from model.errors import OptionError
from model.memory import profile
from model.memory.sizes import GRAPH_BYTES, PoolSizes, check_step
from model.options import RunnerOptions
from model.setup import Setup, choose
from model.step.executors.graphs import StepGraphs
from model.step.runner import ModelRunner
from tests.model.driving import checkpoint, tiny

CONFIG = tiny((5, None), max_position=256)
WEIGHTS = 4 * CONFIG.n_parameters
STEP = 40_000
PAGE = 2 * 32 * 2 * 8 * 4
"""Bytes of a page of 32 positions in one layer: keys and values of 2 heads of 8, in float32."""


@dataclass
class Device:
    """Has `total` bytes, of which others take 10,000; a step that this process computes takes STEP."""

    total: int
    steps: list[StepBatch] = field(default_factory=list)
    pages: int = 0
    watched: int = 0

    def watch(self) -> None:
        self.watched += 1

    def peak(self) -> int:
        assert self.steps, "no step was watched"
        return 10_000 + WEIGHTS + self.pages * PAGE + STEP


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device(2**20)
    launch = ModelRunner.launch

    def compute(self: ModelRunner, batch: StepBatch) -> Any:
        if made.watched == 1:
            made.steps.append(batch)
            made.pages = sum(spec.n_pages for spec in self.info.pools)
        return launch(self, batch)

    monkeypatch.setattr(ModelRunner, "launch", compute)
    monkeypatch.setattr(profile, "watched", lambda _: made)
    monkeypatch.setattr(loading, "free_bytes", lambda _: made.total - 10_000)
    return made


def load(config: ModelConfig = CONFIG, **options: Any) -> ModelRunner:
    values = {"device": "cpu", "dtype": "float32", "max_sequences": 4, "max_step_tokens": 48, **options}
    return loading.load_from(checkpoint(config), RunnerOptions("", **values), lambda stage, done: None)


def test_pools_take_what_is_left_of_nine_tenths(device: Device) -> None:
    info = load().info
    left = int(0.9 * 2**20) - 10_000 - WEIGHTS - STEP
    # a sequence of 256 tokens: ceil((5 - 1 + 48) / 32) + 1 = 3 pages and 8 pages
    times = left / (11 * PAGE)
    assert info.max_model_len == 256
    assert info.pools == (PoolSpec(5, int(3 * times)), PoolSpec(None, int(8 * times)))
    assert device.watched == 2


def test_the_step_is_the_largest(device: Device) -> None:
    """4 sequences at their longest, 48 tokens: three decode, one is a chunk whose every token is scored."""
    load()
    (batch,) = device.steps
    assert [(item.start, item.stop) for item in batch.slices] == [(255, 256)] * 3 + [(211, 256)]
    assert all(item.samples for item in batch.slices)
    assert [item.scores_prompt for item in batch.slices] == [False] * 3 + [True]


def test_others_in_the_step_are_no_longer_than_memory_allows() -> None:
    """Each of 512 sequences is twice as long as if all were equally long."""
    config = tiny((None,), max_position=2**15)
    plan = PoolSizes(config, 32, 32, 600, 512)
    n_bytes = 512 * plan.bytes_for(64)
    batch = profile.largest_step(plan, 2**15, n_bytes, 20)
    assert {(item.start, item.stop) for item in batch.slices[:-1]} == {(127, 128)}
    assert batch.slices[-1].stop == 2**15
    assert all(item.samples for item in batch.slices)


def test_a_length_that_the_step_leaves_no_memory_for(device: Device) -> None:
    """256 tokens fit beside the weights, but not beside the weights and a step. Then not even one token fits."""
    device.total = int((10_000 + WEIGHTS + 11 * PAGE + STEP // 2) / 0.9)
    assert load().info.max_model_len == 32 * ((11 * PAGE - STEP // 2) // PAGE - 3)
    device.steps.clear()
    device.watched = 0
    with pytest.raises(OptionError, match=r"one sequence of 256 tokens needs 44.0 KiB .* --max-model-len \d+ would"):
        load(max_model_len=256)
    device.total = int((10_000 + WEIGHTS) / 0.9)
    device.watched = 0
    with pytest.raises(OptionError, match=r"one sequence of 1 tokens needs"):
        load()
    assert device.watched == 0, "refused before the weights were read"


def test_memory_for_the_cache_may_be_given(device: Device) -> None:
    device.total = 2**30
    assert sum(spec.n_pages for spec in load(cache_memory=22 * PAGE).info.pools) == 22
    assert not device.steps


def test_what_graphs_hold_is_left_for_them(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setup, "captures", True)
    monkeypatch.setattr(warming, "CudaCapture", lambda: lambda compute: compute)
    device.total = 2**28
    graphs = PoolSizes(CONFIG, 32, 32, 48, 4).graph_bytes(256, 4)
    left = int(0.9 * 2**28) - 10_000 - WEIGHTS - STEP - graphs
    assert load(attention="sdpa").info.pools[1].n_pages == int(8 * left / (11 * PAGE))


@pytest.mark.parametrize(
    ("max_sequences", "length", "windows"), [(1, 40, (None,)), (9, 200, (5, None)), (6, 256, (5,))]
)
def test_bytes_of_graphs(max_sequences: int, length: int, windows: tuple[int | None, ...]) -> None:
    """What the tensors of graphs take, and the estimates of what they compute. The spans are those of the longest."""
    config = tiny(windows, max_position=256)
    sizes = PoolSizes(config, 32, 32, 48, max_sequences)
    specs = tuple(PoolSpec(window, 4) for window in config.pool_windows)
    info = RunnerInfo(32, specs, length, config.vocab_size, config.dim, max_sequences, 48, {})
    graphs = StepGraphs(lambda inputs, last: torch.empty(0), info, max_sequences, torch.device("cpu"), capture)
    found = [*vars(graphs._inputs).values(), *graphs._inputs._parts, graphs._logits]
    memory = [one.untyped_storage() for one in found if isinstance(one, torch.Tensor)]
    held = {each.data_ptr(): each.nbytes() for each in memory}
    step = max_sequences * config.vocab_size * (4 + 4) + 48 * (2 * 32 + 3 * 48) * 4
    sums = len(specs) * 512 * 16 * (4 * (8 + 2) * 4 + 64)
    assert sum(held.values()) == sizes.graph_bytes(length, 4) - step - sums - GRAPH_BYTES


def capture(compute: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize(("heads", "n"), [((32, 8, 128), 1), ((8, 1, 256), 32), ((14, 2, 64), 256)], ids=str)
def test_the_scratch_of_attention_is_counted_for_every_gpu(n: int, heads: tuple[int, int, int]) -> None:
    """From an L4, of 58 multiprocessors, to a B200, of 148; in a window for each of two pools."""
    names = ("n_heads", "n_kv_heads", "head_dim")
    one, two = (tiny(windows, **dict(zip(names, heads, strict=True))) for windows in ((None,), (None, 4096)))
    whole, beside = (PoolSizes(config, 32, 256, 2048, n).graph_bytes(512, 2) for config in (two, one))
    for n_sms in (58, 108, 132, 148):
        assert scratch_bytes(n, 131072, 4096, heads, Gpu((9, 0), n_sms)) <= whole - beside


def test_a_cache_that_leaves_no_memory_for_a_step_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of 48 tokens and the tables of rotary positions count."""
    options = RunnerOptions("", device="cpu", dtype="float32", max_sequences=4, max_step_tokens=48, cache_memory=2**20)
    setup = replace(choose(checkpoint(CONFIG), options), device=torch.device("cuda"))
    step = setup.pool_sizes.step_bytes(4) + 256 * setup.pool_sizes.position_bytes
    needed = WEIGHTS + 2**20 + step
    monkeypatch.setattr(loading, "free_bytes", lambda _: needed)
    assert loading.size(setup, None, None, 0).cache == 2**20
    monkeypatch.setattr(loading, "free_bytes", lambda _: needed - 1)
    with pytest.raises(OptionError, match=r"--cache-memory 1.00 MiB leaves .* of the GPU for a step .* need about"):
        loading.size(setup, None, None, 0)
    with pytest.raises(OptionError, match="at most 3MiB would fit, or lower --max-step-tokens or --max-sequences"):
        check_step(5 * 2**20, 2**20, 4 * 2**20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization must be above 0 and at most 1, got 0.0"),
        ({"gpu_memory_utilization": 1.1}, "--gpu-memory-utilization must be above 0 and at most 1, got 1.1"),
        ({"gpu_memory_utilization": 0.5}, "--gpu-memory-utilization 0.5 needs a GPU, the device is cpu; use --cache-"),
        ({"gpu_memory_utilization": 0.5, "cache_memory": 1}, "0.5 and --cache-memory both size the cache"),
    ],
)
def test_utilization_is_of_a_gpu(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        loading.create(lambda stage, done: None, model="nowhere", device="cpu", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(("max_sequences", "max_step_tokens", "length"), [(1, 1, 1), (4, 4, 2), (3, 100, 40)])
def test_largest_step_of_any_limits(max_sequences: int, max_step_tokens: int, length: int) -> None:
    plan = PoolSizes(CONFIG, 32, 32, max_step_tokens, max_sequences)
    batch = profile.largest_step(plan, length, 2**20, 2)
    assert batch.n_tokens == min(max_step_tokens, max_sequences - 1 + length)
    assert len(batch.slices) == max_sequences
    assert all(0 <= item.start < item.stop == length for item in batch.slices)
