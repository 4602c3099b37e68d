"""The real scheduler on the real network: chunked, packed, cached and preempted answers are those of `transformers`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)

from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.engine.driving import Client

WINDOW = 24
PARAMS = SamplingParams(temperature=0.0, max_tokens=40)
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "attn_implementation": "eager",
}


@pytest.fixture(scope="module", params=["llama", "mistral", "mixtral"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PreTrainedModel]:
    torch.manual_seed(3)
    model: PreTrainedModel = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW)),
        "mixtral": lambda: MixtralForCausalLM(
            MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
        ),
    }[request.param]()
    directory = tmp_path_factory.mktemp(request.param)
    model.eval().save_pretrained(directory)
    return directory, model


def load(directory: Path, **options: object) -> ModelRunner:
    return create(lambda stage, done: None, model=str(directory), dtype="float32", max_model_len=128, **options)


def prompts() -> list[list[int]]:
    """Lengths around the window and beyond; the last two begin like the first long one."""
    lengths = [1, 5, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 70]
    made = [[(11 * n + 7 * i + i * i) % 97 for i in range(length)] for n, length in enumerate(lengths)]
    return [*made, [*made[-1][:64], 1, 2, 3], made[-1]]


@pytest.fixture(scope="module")
def oracle(checkpoint: tuple[Path, PreTrainedModel]) -> list[list[int]]:
    """The greedy tokens of each prompt, computed from whole sequences without a cache."""
    _, model = checkpoint
    answers = []
    with torch.inference_mode():
        for prompt in prompts():
            tokens = list(prompt)
            for _ in range(PARAMS.max_tokens):
                tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
            answers.append(tokens[len(prompt) :])
    return answers


def run(scheduler: Scheduler, runner: ModelRunner, requests: list[list[int]]) -> list[list[int]]:
    """Serve the prompts together; every page must be released."""
    answers: list[list[int]] = [[] for _ in requests]
    for number, prompt in enumerate(requests):
        scheduler.submit(Submit(number, prompt, PARAMS))
    while scheduler.has_work:
        for update in scheduler.commit(runner.step(scheduler.plan())):
            answers[update.id] += update.tokens
    scheduler.check_idle()
    return answers


@pytest.mark.each
@pytest.mark.parametrize(
    ("attention", "max_step_tokens"), [("paged", 9), ("paged", WINDOW), ("paged", 400), ("sdpa", WINDOW)]
)
def test_packed_and_chunked(
    checkpoint: tuple[Path, PreTrainedModel], oracle: list[list[int]], attention: str, max_step_tokens: int
) -> None:
    runner = load(checkpoint[0], attention=attention, max_sequences=9, max_step_tokens=max_step_tokens)
    scheduler = Scheduler(runner.info, max_sequences=9, max_step_tokens=max_step_tokens)
    assert run(scheduler, runner, prompts()) == oracle


def test_ahead(checkpoint: tuple[Path, PreTrainedModel], oracle: list[list[int]]) -> None:
    """Each step is launched before the tokens of the previous step are known, as on a GPU. Two prompts come later.

    Only the first step has none before it. Prompts of 70 and 67 tokens come in chunks.
    """
    runner = load(checkpoint[0], max_sequences=9, max_step_tokens=64)
    runner.info = replace(runner.info, runs_ahead=True)
    requests = [Submit(number, prompt, PARAMS) for number, prompt in enumerate(prompts())]
    client = Client(runner, [requests[:7], *[[]] * 20, requests[7:]], max_sequences=9, max_step_tokens=64)
    assert [client.answers[number] for number in range(len(requests))] == oracle
    assert client.n_ahead >= len(client.stats) - 4


def test_cached(checkpoint: tuple[Path, PreTrainedModel], oracle: list[list[int]]) -> None:
    runner = load(checkpoint[0], max_sequences=9, max_step_tokens=64)
    scheduler = Scheduler(runner.info, max_sequences=1, max_step_tokens=64)
    assert [run(scheduler, runner, [prompt])[0] for prompt in prompts()] == oracle
    hits = scheduler.stats().hit_tokens
    assert hits >= 64  # the last two prompts started from pages of the long one
    assert [run(scheduler, runner, [prompt])[0] for prompt in prompts()] == oracle
    assert scheduler.stats().hit_tokens > 2 * hits


def test_preempted(checkpoint: tuple[Path, PreTrainedModel], oracle: list[list[int]]) -> None:
    # There are 5 pages of 32. One sequence of 128 tokens fits, but not three growing ones.
    bytes_a_page = 32 * 3 * 2 * 2 * 8 * 4
    runner = load(checkpoint[0], max_sequences=9, max_step_tokens=64, cache_memory=5 * bytes_a_page)
    assert [pool.n_pages for pool in runner.info.pools] == [5]
    scheduler = Scheduler(runner.info, max_sequences=9, max_step_tokens=64)
    assert run(scheduler, runner, prompts()) == oracle
    assert scheduler.stats().preemptions > 0
