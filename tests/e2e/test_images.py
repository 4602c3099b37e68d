"""No bit of tokens or logprobs of an answer to images depends on how they are served; and logprobs are those of
`transformers`."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from model.batch import PoolSpec
from model.loading import create
from model.media import MediaSpan
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.client import EngineClient
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from service.engine.supervision.process import EngineProcess
from tests.e2e.paced import HERE, PACE
from tests.e2e.without_server import Answer, answers_to
from tests.engine.hosting import Hosts, collect, until, zygote
from tests.model import pixtral
from tests.model.pixtral import IMG, IMG_BREAK, IMG_END

GREEDY = SamplingParams(temperature=0.0, max_tokens=10, logprobs=3, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=10, logprobs=3, ignore_eos=True)
SIDES = {"mistral3": 28, "llava": 16}
"""Pixels of a side of the square that one token stands for."""


class Prompt(NamedTuple):
    """The fields of a request that depend on its images."""

    prompt: list[int]
    media: tuple[MediaSpan, ...]
    inputs: bytes

    def submit(self, number: int, params: SamplingParams) -> Submit:
        return Submit(number, self.prompt, params, media=self.media, inputs=self.inputs)


def image(rows: int, columns: int, seed: int, side: int) -> Tensor:
    """Random pixels [H, W, 3]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows * side, columns * side, 3), generator=generator, dtype=torch.uint8)


def ask(side: int, *parts: int | tuple[int, int, int]) -> Prompt:
    """A prompt of some bytes of text for each number, and of an image for each (rows, columns, seed)."""
    tokens, spans, pixels = [1, 3], [], b""
    for part in parts:
        if isinstance(part, int):
            tokens += [40 + (7 * part + n * n) % 200 for n in range(part)]
            continue
        rows, columns, _ = part
        spans.append(MediaSpan(len(tokens), rows, columns, repr(part)))
        for row in range(rows):
            tokens += [*[IMG] * columns, IMG_BREAK if row < rows - 1 else IMG_END]
        pixels += image(*part, side).numpy().tobytes()
    return Prompt([*tokens, 4], tuple(spans), pixels)


Load = Callable[..., ModelRunner]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    @cache
    def directory(kind: str) -> Path:
        return pixtral.save_native(kind, tmp_path_factory.mktemp(kind))

    @cache
    def loaded(kind: str, **options: Any) -> ModelRunner:
        sizes = {"max_model_len": 512, "cache_memory": 2**22, "device": "cpu"} | options
        return create(lambda stage, done: None, model=str(directory(kind)), **sizes)

    return loaded


SERVED: list[tuple[str, dict[str, Any]]] = [
    ("mistral3", {"quantize": "int8"}),
    ("llava", {"quantize": "int8"}),
    ("mistral3", {"dtype": "bfloat16"}),
]


class Served(NamedTuple):
    """A loaded model, and prompts with and without images."""

    runner: ModelRunner
    prompts: list[Prompt]
    kind: str
    options: dict[str, Any]

    def requests(self) -> list[Submit]:
        params = (GREEDY, SEEDED, GREEDY, SEEDED)
        return [prompt.submit(n, params[n % 4]) for n, prompt in enumerate(self.prompts)]


@pytest.fixture(scope="module", params=SERVED, ids=lambda item: "-".join((item[0], *item[1].values())))
def served(request: pytest.FixtureRequest, load: Load) -> Served:
    kind, options = request.param
    side, first, second = SIDES[kind], (3, 4, 1), (4, 2, 2)
    prompts = [
        ask(side, 5, first, 9, second, 3),
        ask(side, first, 30),
        ask(side, 40),
        ask(side, 5, second, 9, first, second),
        ask(side, 5, (3, 4, 3), 9, second, 3),  # as the first, with another image of the same size
    ]
    runner = load(kind, **options)
    assert runner.info.description["kernels"].startswith("native")
    return Served(runner, prompts, kind, options)


def serve(
    runner: ModelRunner, requests: Sequence[Submit], max_step_tokens: int = 512
) -> tuple[list[Answer], Scheduler]:
    scheduler = Scheduler(runner.info, max_sequences=min(8, max_step_tokens), max_step_tokens=max_step_tokens)
    numbered = [replace(item, id=n) for n, item in enumerate(requests)]
    return answers_to(scheduler, runner, numbered), scheduler


@pytest.fixture(scope="module")
def alone(served: Served) -> list[Answer]:
    answers = [serve(served.runner, [item])[0][0] for item in served.requests()]
    assert answers[0] != answers[4]
    return answers


def test_packed_with_others(served: Served, alone: list[Answer]) -> None:
    assert serve(served.runner, served.requests())[0] == alone


@pytest.mark.each
@pytest.mark.parametrize("max_step_tokens", [1, 7, 40])
def test_in_other_chunks(served: Served, alone: list[Answer], max_step_tokens: int) -> None:
    assert serve(served.runner, served.requests(), max_step_tokens)[0] == alone


def test_from_cached_pages(served: Served, alone: list[Answer]) -> None:
    """Pages have 32 positions: the first page of two prompts ends inside an image."""
    scheduler = Scheduler(served.runner.info, max_sequences=1, max_step_tokens=512)
    assert answers_to(scheduler, served.runner, served.requests()) == alone
    before = scheduler.stats().hit_tokens
    assert before < 8  # the few tokens before the images
    assert answers_to(scheduler, served.runner, served.requests()) == alone
    whole_pages = sum((len(prompt.prompt) - 1) // 32 * 32 for prompt in served.prompts)
    assert whole_pages <= scheduler.stats().hit_tokens - before <= sum(len(prompt.prompt) for prompt in served.prompts)


def test_after_preemption_with_a_store_of_one_image(served: Served) -> None:
    requests = [replace(item, params=replace(item.params, max_tokens=30)) for item in served.requests()]
    info = replace(served.runner.info, pools=(PoolSpec(None, 5),), max_model_len=160, media_tokens=12)
    scheduler = Scheduler(info, max_sequences=8, max_step_tokens=24)
    answers = answers_to(scheduler, served.runner, requests)
    assert scheduler.stats().preemptions > 0
    assert answers == [serve(served.runner, [item])[0][0] for item in requests]


@pytest.mark.parametrize("max_step_tokens", [512, 7])
@pytest.mark.parametrize("kind", SIDES)
def test_logprobs_are_those_of_transformers(kind: str, max_step_tokens: int, load: Load) -> None:
    runner = load(kind, dtype="float32")
    side, grids = SIDES[kind], ((2, 3, 1), (4, 1, 2))
    prompt = ask(side, 5, grids[0], 9, grids[1], 3)
    (expected,) = oracle(kind, prompt.prompt, [image(*grid, side) for grid in grids])
    scheduler = Scheduler(runner.info, max_sequences=1, max_step_tokens=max_step_tokens)
    scheduler.submit(prompt.submit(0, SamplingParams(max_tokens=1, prompt_logprobs=0)))
    found: list[float] = []
    while scheduler.has_work:
        for update in scheduler.commit(runner.step(scheduler.plan())):
            found += [item.logprob for item in update.prompt_logprobs]
    wanted = expected[:-1].gather(1, torch.tensor(prompt.prompt[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found), wanted, atol=1e-4, rtol=0)


def oracle(kind: str, tokens: list[int], images: list[Tensor]) -> Tensor:
    """Log probabilities [1, T, vocab_size] of transformers. The pixels are normalized by hand."""
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    deviation = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    height, width = (max(item.shape[axis] for item in images) for axis in (0, 1))
    values = torch.zeros(len(images), 3, height, width)
    for place, pixels in zip(values, images, strict=True):
        place[:, : pixels.shape[0], : pixels.shape[1]] = ((pixels / 255 - mean) / deviation).permute(2, 0, 1)
    sizes = torch.tensor([pixels.shape[:2] for pixels in images])
    with torch.no_grad():
        logits: Tensor = pixtral.build(kind)(
            input_ids=torch.tensor([tokens]), pixel_values=values, image_sizes=sizes
        ).logits
    return logits.log_softmax(-1)


@pytest.mark.parametrize(("n_images", "n_tokens"), [(12, 0), (1, 3)])
def test_an_engine_that_is_killed_in_the_middle_of_an_image_or_of_the_answer(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, n_images: int, n_tokens: int
) -> None:
    """The next engine encodes images again, and the request has the answer that it would have had."""
    model = pixtral.save_native("mistral3", tmp_path)
    prompt = ask(28, *((5, 5, seed) for seed in range(n_images)))  # 12 have more than 400 steps of 3 tokens
    params = replace(GREEDY, logprobs=None)
    monkeypatch.setenv(PACE, str(model))  # it is there, so that the steps are slow
    hosts = Hosts(
        lambda: EngineProcess(f"{HERE}model.loading:create", zygote()),
        lambda: EngineProcess("model.loading:create", zygote()),
    )
    options = {"model": str(model), "device": "cpu", "quantize": "int8", "max_sequences": 2, "max_step_tokens": 3}

    async def main() -> list[int]:
        client = EngineClient(hosts)
        await client.start({**options, "max_model_len": 512, "cache_memory": 2**22})

        try:
            (mailbox,) = client.submit_choices(prompt.submit(0, params))
            await until(lambda: client.stats.running == 1 and len(mailbox.output) >= n_tokens)
            hosts.made[0].kill()
            return await collect(mailbox)
        finally:
            await client.close()

    (alone,), _ = serve(load("mistral3", quantize="int8"), [prompt.submit(0, GREEDY)])
    assert asyncio.run(main()) == [token for token, _ in alone]
