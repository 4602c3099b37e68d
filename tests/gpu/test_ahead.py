"""Steps launched ahead and replayed from CUDA graphs, through the engine's loop. Run with `pytest -m gpu tests/gpu`."""

import os

import pytest
import torch

from model.batch import TokenLogprob
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.executors.graphs import GraphExecutor
from model.step.runner import ModelRunner
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client
from tests.gpu.cases import sized
from tests.model.driving import checkpoint, tiny

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("NORIA_TEST_DEVICE", "cuda")
WINDOW = 37
LENGTHS = sized((3, 50, WINDOW, 1, 90, 12), (3, 50, 1))
N_TOKENS = sized(30, 6)
GREEDY = SamplingParams(temperature=0.0, max_tokens=N_TOKENS, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, top_k=20, seed=5, max_tokens=N_TOKENS, logprobs=2)


def load(dtype: str = "bfloat16", vocab_size: int = 64, **options: object) -> ModelRunner:
    """A runner with little memory for keys and values, because several runners exist at a time."""
    config = tiny((WINDOW, None), head_dim=32, dim=64, vocab_size=vocab_size)
    limits = {"max_sequences": 8, "max_step_tokens": 64, "cache_memory": 2**24}
    made = RunnerOptions("", device=DEVICE, dtype=dtype, **{**limits, **options})  # type: ignore[arg-type]
    return load_from(checkpoint(config), made, lambda stage, done: None)


def requests() -> list[ToEngine]:
    return [
        Submit(i, [(7 * i + j * j) % 64 for j in range(length)], SEEDED if i % 2 else GREEDY)
        for i, length in enumerate(LENGTHS)
    ]


def answers(runner: ModelRunner, script: list[list[ToEngine]]) -> dict[int, list[tuple[int, TokenLogprob]]]:
    client = Client(runner, script, max_sequences=8, max_step_tokens=64)
    return {
        number: list(zip(tokens, client.logprobs[number], strict=True)) for number, tokens in client.answers.items()
    }


@pytest.fixture(scope="module")
def fixed() -> ModelRunner:
    return load(dtype="bfloat16" if DEVICE == "cuda" else "float32", deterministic=True)


def test_deterministic_answers_do_not_depend_on_who_is_served(fixed: ModelRunner) -> None:
    """Requests start together, one step after the other, or alone. Their tokens and logprobs are equal bit for bit."""
    together = answers(fixed, [requests()])
    assert answers(fixed, [[item] for item in requests()]) == together
    for number, item in enumerate(requests()):
        assert answers(fixed, [[item]])[number] == together[number]


@pytest.mark.skipif(DEVICE == "cpu", reason="there are no graphs on a CPU")
def test_graphs_change_nothing(fixed: ModelRunner, caplog: pytest.LogCaptureFixture) -> None:
    graphs = fixed.executor
    assert isinstance(graphs, GraphExecutor)
    while fixed.idle():
        pass
    assert not caplog.records, "one could not be recorded"
    with_graphs = answers(fixed, [requests()])
    fixed.executor = graphs._eager
    try:
        assert answers(fixed, [requests()]) == with_graphs
    finally:
        fixed.executor = graphs


@pytest.mark.skipif(DEVICE == "cpu", reason="there are no graphs on a CPU")
def test_graphs_share_their_memory() -> None:
    """The memory of the greatest graph is enough for the 20 others."""
    runner = load(vocab_size=2**15, max_sequences=256, max_step_tokens=256, fast_start=True)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    runner.idle()
    first = torch.cuda.memory_reserved()
    while runner.idle():
        pass
    assert first > before
    assert torch.cuda.memory_reserved() - first < first - before


@pytest.mark.skipif(DEVICE == "cpu", reason="there is nothing to wait for on a CPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device_while_steps_are_launched(
    fixed: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all captures and compilations, only the read of the results waits. It is outside of `launch`."""
    expected = answers(fixed, [requests()])
    launch = fixed.launch

    def strictly(batch: object) -> object:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(batch)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(fixed, "launch", strictly)
    assert answers(fixed, [requests()]) == expected


def test_a_gpu_runs_ahead() -> None:
    runner = load(dtype="float32")
    client = Client(runner, [requests()], max_sequences=8, max_step_tokens=64)
    assert runner.info.runs_ahead == (DEVICE == "cuda")
    assert (client.n_ahead > 0) == (DEVICE == "cuda")
