"""No bit of tokens or logprobs of a sparse network depends on how a request is served."""

from pathlib import Path
from typing import Any

import pytest
import torch

from model.checkpoint.stored import Stored
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.without_server import serve, serve_with
from tests.model.driving import EXPERTS, checkpoint, random_stored, tiny
from tests.model.fp4 import nearest

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=12, logprobs=3)
SIZES: dict[str, Any] = {**EXPERTS, "dim": 128, "hidden_dim": 192, "expert_hidden_dim": 96, "vocab_size": 512}
SERVED: list[dict[str, Any]] = [
    {"quantize": "int8"},
    {"quantize": "int4"},
    {"dtype": "bfloat16"},
    {"quantize": "int8", "experts": "nvfp4"},
]


@pytest.fixture(scope="module", params=SERVED, ids=lambda options: "-".join(options.values()))
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """A dense layer, then three of experts, one of them with a window; nothing is read from the directory."""
    config = tiny((None, None, 40, None), **SIZES)
    directory: Path = tmp_path_factory.mktemp("sparse")
    chosen = {key: value for key, value in request.param.items() if key != "experts"}
    tensors = list(random_stored(config))
    if "experts" in request.param:
        tensors = [(name, in_nvfp4(matrix) if ".experts." in name else matrix) for name, matrix in tensors]
    options = RunnerOptions(model=str(directory), device="cpu", max_model_len=256, **chosen)
    return load_from(checkpoint(config, tensors), options, lambda stage, done: None)


def in_nvfp4(matrix: Stored) -> Stored:
    codes, scales, divisor = nearest(matrix.values)
    return Stored(codes, "fp4", scales.view(torch.uint8), 16, factor=1 / divisor)


def prompt(number: int, length: int) -> list[int]:
    return [(7919 * number + 31 * i * i) % 512 for i in range(length)]


def test_alone_packed_in_chunks_and_from_cached_pages(runner: ModelRunner) -> None:
    mine = [(prompt(0, 90), GREEDY), (prompt(1, 37), SEEDED)]
    alone = [serve(runner, [item])[0][0] for item in mine]
    others = [(prompt(2 + i, 3 + 5 * i), GREEDY) for i in range(20)]
    assert serve(runner, [*others, *mine])[0][20:] == alone
    assert serve(runner, mine, 7)[0] == alone
    scheduler = Scheduler(runner.info, max_sequences=8, max_step_tokens=512)
    assert serve_with(scheduler, runner, mine) == alone
    assert serve_with(scheduler, runner, mine) == alone
    assert scheduler.stats().hit_tokens >= 64
