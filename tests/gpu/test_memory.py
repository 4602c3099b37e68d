"""A GPU's memory: the size of pools, steps that do not fit, and the transfer of weights.

Run with `pytest -m gpu tests/gpu`.
"""

import gc
import logging
from typing import Any

import pytest
import torch

from model.batch import PageTable, Slice, StepBatch, TokenLogprob
from model.config.model import ModelConfig
from model.loading import load_from
from model.options import GPU_UTILIZATION, RunnerOptions
from model.sampling_params import SamplingParams
from model.step import retry
from model.step.runner import ModelRunner
from service.engine.messages import FromEngine, Report, Submit, ToEngine
from tests.engine.driving import Client
from tests.gpu.cases import IS_IDLE
from tests.model.driving import checkpoint, tiny

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
LEFT = 48 * 2**20
"""Bytes that the drill leaves free."""
TOKENS = 4096


@pytest.fixture(autouse=True)
def _cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    gc.collect()
    torch.cuda.empty_cache()  # a runner takes all free memory


def wide() -> ModelConfig:
    """Gate and up of TOKENS rows take 128 MiB in bfloat16."""
    sizes = {"dim": 1024, "n_heads": 8, "n_kv_heads": 2, "head_dim": 128, "hidden_dim": 8192, "vocab_size": 2048}
    return tiny((256, None), **sizes, max_position=8192, dtype="bfloat16")


def load(config: ModelConfig, **options: Any) -> ModelRunner:
    values = {"device": "cuda", "max_sequences": 8, "max_step_tokens": TOKENS, **options}
    return load_from(checkpoint(config), RunnerOptions("", **values), lambda stage, done: None)


def test_pools_leave_a_tenth_and_memory_for_the_largest_step(caplog: pytest.LogCaptureFixture) -> None:
    runner = load(wide())
    free, total = torch.cuda.mem_get_info()
    assert (total - free) / total == pytest.approx(GPU_UTILIZATION, abs=0.02)
    torch.cuda.reset_peak_memory_stats()
    with caplog.at_level(logging.WARNING, logger=retry.__name__):
        runner.step(batch(runner))
    assert not caplog.records
    assert torch.cuda.max_memory_allocated() <= (GPU_UTILIZATION + 0.02) * total


def batch(runner: ModelRunner) -> StepBatch:
    """A long prompt that is scored, and three short ones."""
    n_pages = -(-TOKENS // runner.info.page_size) + 1

    def part(number: int, tokens: list[int], first_page: int, **more: Any) -> Slice:
        pages = list(range(first_page, first_page + -(-len(tokens) // runner.info.page_size)))
        tables = tuple(PageTable(0, pages) for _ in runner.info.pools)
        params = SamplingParams(temperature=0.0, logprobs=1, **more)
        return Slice(number, tokens, len(tokens), 0, len(tokens), tables, params)

    prompt = [(31 * i + i * i) % 2048 for i in range(TOKENS - 16)]
    long = part(0, prompt, 0, prompt_logprobs=0)
    short = [part(n, prompt[n : n + 6], n_pages + n) for n in (1, 2)]
    return StepBatch((long, *short, part(3, prompt[:4], n_pages + 3)))


class Scored(Client):
    """A client of four requests, the first of them scored, that also keeps the log probabilities of its prompt."""

    def __init__(self, runner: ModelRunner) -> None:
        self.scores: list[TokenLogprob] = []
        items = batch(runner).slices
        submits: list[ToEngine] = [Submit(item.sequence_id, [*item.tokens], item.params) for item in items]
        super().__init__(runner, [submits], max_sequences=8, max_step_tokens=TOKENS)

    def send(self, message: FromEngine) -> None:
        assert isinstance(message, Report)
        self.scores += (score for update in message.updates for score in update.prompt_logprobs)
        super().send(message)


def test_requests_of_a_step_that_does_not_fit_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    """After the start something else uses the memory."""
    runner = load(wide(), cache_memory=2**30, max_model_len=TOKENS)
    expected = Scored(runner)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - LEFT, dtype=torch.uint8, device=CUDA)
    with caplog.at_level(logging.WARNING, logger=retry.__name__):
        found = Scored(runner)
    assert caplog.records, "it fitted: the drill proves nothing"
    del ballast
    assert found.finished == expected.finished == dict.fromkeys(range(4), "length")
    assert [score.token for score in found.scores] == [score.token for score in expected.scores]
    for mine, theirs in zip(found.scores, expected.scores, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=0.25)
    again = Scored(runner)
    assert again.finished == expected.finished
    if not IS_IDLE:  # numbers that nobody computes are those of the memory
        assert (again.scores, again.logprobs) == (expected.scores, expected.logprobs), (
            "with memory, nothing is left of it"
        )
