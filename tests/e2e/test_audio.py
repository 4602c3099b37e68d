"""Promises of answers about audio: the same bits alone, beside others, in other chunks, reused and preempted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.batch import PoolSpec
from model.loading import create
from model.media import MediaSpan
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.without_server import Answer, answers_to
from tests.model import voxtral
from tests.model.voxtral import AUDIO, BEGIN_AUDIO

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=8, logprobs=3, ignore_eos=True)
TOKENS = 375


def heard(number: int, params: SamplingParams, *parts: int | tuple[int, ...]) -> Submit:
    """A request of some bytes of text for each number, and a recording for each tuple of the seeds of its chunks."""
    tokens, spans, inputs = [1, 3], [], b""
    for part in parts:
        if isinstance(part, int):
            tokens += [40 + (7 * part + n * n) % 200 for n in range(part)]
            continue
        tokens.append(BEGIN_AUDIO)
        for seed in part:
            spans.append(MediaSpan(len(tokens), 1, TOKENS, f"chunk {seed}", breaks=0))
            tokens += [AUDIO] * TOKENS
            inputs += torch.randn(128, 3000, generator=torch.Generator().manual_seed(seed)).numpy().tobytes()
    return Submit(number, [*tokens, 4], params, media=tuple(spans), inputs=inputs)


@pytest.fixture(scope="module", params=[{"quantize": "int8"}, {"dtype": "bfloat16"}], ids=str)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    directory = voxtral.save_native(tmp_path_factory.mktemp("voxtral"))
    sizes: dict[str, Any] = {"max_model_len": 2048, "cache_memory": 2**24, "device": "cpu", **request.param}
    made = create(lambda stage, done: None, model=str(directory), **sizes)
    assert made.info.description["kernels"].startswith("native")
    return made


REQUESTS = [
    heard(0, GREEDY, 5, (1, 2), 9),
    heard(1, SEEDED, (3,), 30, (1,)),
    heard(2, GREEDY, 40),
    heard(3, SEEDED, 5, (1, 4), 9),  # as the first, with another second chunk
]


def serve(runner: ModelRunner, requests: Sequence[Submit], max_step_tokens: int = 512) -> list[Answer]:
    scheduler = Scheduler(runner.info, max_sequences=min(8, max_step_tokens), max_step_tokens=max_step_tokens)
    return answers_to(scheduler, runner, [replace(item, id=n) for n, item in enumerate(requests)])


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[Answer]:
    answers = [serve(runner, [item])[0] for item in REQUESTS]
    assert answers[0] != answers[3]
    return answers


@pytest.mark.parametrize("max_step_tokens", [512, 40, 7])
def test_beside_others_in_chunks(runner: ModelRunner, alone: list[Answer], max_step_tokens: int) -> None:
    assert serve(runner, REQUESTS, max_step_tokens) == alone


def test_from_cached_pages(runner: ModelRunner, alone: list[Answer]) -> None:
    scheduler = Scheduler(runner.info, max_sequences=1, max_step_tokens=512)
    assert answers_to(scheduler, runner, REQUESTS) == alone
    before = scheduler.stats().hit_tokens
    assert before < 2 * TOKENS  # the first chunk of the last request is that of the first one
    assert answers_to(scheduler, runner, REQUESTS) == alone
    assert scheduler.stats().hit_tokens - before >= sum((len(item.prompt) - 1) // 32 * 32 for item in REQUESTS)


def test_after_preemption_with_a_store_of_one_chunk(runner: ModelRunner) -> None:
    requests = [replace(item, params=replace(item.params, max_tokens=60)) for item in REQUESTS]
    info = replace(runner.info, pools=(PoolSpec(None, 28),), max_model_len=864, media_tokens=TOKENS)
    scheduler = Scheduler(info, max_sequences=8, max_step_tokens=64)
    answers = answers_to(scheduler, runner, requests)
    assert scheduler.stats().preemptions > 0
    assert answers == [serve(runner, [item])[0] for item in requests]
