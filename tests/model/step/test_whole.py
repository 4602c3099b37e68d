"""A step in one call of the kernels gives the bits of the same step part by part."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.engine import by_layer
from model.batch import PageTable, Slice, StepBatch, StepOutput
from model.config.model import ModelConfig, QueryTemperature, Rope, RopeScaling
from model.kernels.cpu import native
from model.loading import load_from
from model.options import DRAFT_TOKENS, RunnerOptions
from model.sampling_params import SamplingParams
from model.step import head
from model.step.executors.compiled import CompiledExecutor
from model.step.runner import ModelRunner
from tests.model.driving import EXPERTS, checkpoint, random_adapter, tiny

WIDTH = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, top_k=20, seed=7, max_tokens=4)
PENALIZED = replace(SEEDED, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
SCORED = replace(PENALIZED, logprobs=2)
PECULIAR = {
    "rope_dim": 4,
    "full_rope": Rope(1e6, 4, scaling=RopeScaling("yarn", 4.0, 16)),
    "query_temperature": QueryTemperature(16, 0.5),
}
"""Layers differ in their RoPE, and queries have a temperature."""


def made(config: ModelConfig, **options: Any) -> ModelRunner:
    chosen = RunnerOptions("", device="cpu", cache_memory=2**23, **{"quantize": "int8", **options})
    return load_from(checkpoint(config), chosen, lambda stage, done: None)


@pytest.mark.parametrize(
    ("options", "n_tokens"),
    [
        ({}, DRAFT_TOKENS),
        ({"prompt_lookup": "off"}, 0),
        ({"quantize": "none", "dtype": "float32"}, 0),
    ],
)
def test_the_server_drafts_only_where_that_changes_no_bit(options: dict[str, Any], n_tokens: int) -> None:
    assert made(tiny((5, None)), **options).info.prompt_lookup_num_tokens == n_tokens


def part(
    number: int, start: int, stop: int, params: SamplingParams, n_prompt: int, window: int, n_draft: int = 0
) -> Slice:
    """A slice of a sequence with pages of its own, all of them in the pool of full attention, in no order."""
    pages = random.Random(number).sample(range(number * 40, (number + 1) * 40), 40)
    first = max(0, start - window + 1) // 32
    tables = PageTable(first, pages[first : (stop - 1) // 32 + 1]), PageTable(0, pages[: (stop - 1) // 32 + 1])
    tokens = [(7 * i + 11 * number + i * i) % WIDTH for i in range(max(stop, n_prompt))]
    return Slice(number, tokens, n_prompt, start, stop, tables, params, n_draft=n_draft)


def steps(params: SamplingParams, window: int) -> list[StepBatch]:
    """Whole prompts; then a chunk of a prompt, tokens after others, one of them after 17 pages, and a draft."""
    prompts = [(0, 70), (1, 33), (2, 1), (3, 560), (4, 9)]
    first = StepBatch(tuple(part(number, 0, n, params, n, window) for number, n in prompts))
    more = [part(number, n, n + 1, params, n, window) for number, n in prompts[1:4]]
    draft = part(4, 9, 13, replace(params, max_tokens=9), 9, window, n_draft=3)
    return [first, StepBatch((*more, part(0, 70, 130, params, 200, window), draft)), StepBatch((more[2],))]


def both(
    runner: ModelRunner, batches: list[StepBatch], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[StepOutput], list[StepOutput]]:
    assert isinstance(runner.executor, CompiledExecutor)
    whole = [runner.step(batch) for batch in batches]
    monkeypatch.setattr(runner, "executor", by_layer(runner))
    return whole, [runner.step(batch) for batch in batches]


@pytest.mark.parametrize("params", [GREEDY, SEEDED, PENALIZED, SCORED], ids=["greedy", "seeded", "penalized", "scored"])
@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        ({"hidden_dim": 64}, {"quantize": "int4", "kv_dtype": "int8"}),
        ({"dim": 64, **EXPERTS, "expert_hidden_dim": 64}, {"quantize": "none", "dtype": "bfloat16"}),
        (PECULIAR, {"dtype": "float16", "kv_dtype": "int8"}),
    ],
    ids=["int8", "int4", "experts", "peculiar"],
)
def test_bits_are_those_of_the_parts(
    config: dict[str, Any], options: dict[str, str], params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds of embeddings, pools with a window and without, tasks that are split, and logits in blocks."""
    monkeypatch.setattr(head, "LOGIT_VALUES", 4 * WIDTH)
    runner = made(tiny((50, None), max_position=1024, **config), **options)
    whole, parts = both(runner, steps(params, 50), monkeypatch)
    assert whole == parts
    assert [len(output.tokens) > 0 for output in whole[1].slices] == [True, True, True, False, True]


def test_scored_prompts_and_embeddings_are_those_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    params = [replace(GREEDY, prompt_logprobs=1), SEEDED, replace(GREEDY, max_tokens=0, embed="mean")]
    items = [part(number, 0, 40 + number, wanted, 40 + number, 50) for number, wanted in enumerate(params)]
    whole, parts = both(made(tiny((50, None))), [StepBatch(tuple(items))], monkeypatch)
    assert whole == parts
    assert len(whole[0].slices[0].prompt_logprobs) == 39
    assert len(whole[0].slices[2].pooled) == 32


@pytest.mark.parametrize("params", [GREEDY, SCORED], ids=["greedy", "scored"])
@pytest.mark.parametrize("config", [{}, {"dim": 64, **EXPERTS}], ids=["dense", "experts"])
def test_adapters_and_images_are_those_of_the_parts(
    config: dict[str, Any], params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three adapters of other ranks, with and without the head, and rows of images among the rows of all slices."""
    monkeypatch.setattr(head, "LOGIT_VALUES", 4 * WIDTH)
    torch.manual_seed(0)
    runner = made(tiny((50, None), max_position=1024, **config))
    targets = ("wqkv", "wo", "output") if config else ("wqkv", "wo", "w13", "w2", "output")
    for number, wanted in enumerate((targets, targets[:2], targets), 1):
        runner.adapters.hold(number, random_adapter(runner.head.model.config, 5 * number, wanted).pack())
    batches = [
        StepBatch(tuple(item._replace(adapter=item.sequence_id % 4) for item in batch.slices))
        for batch in steps(params, 50)
    ]
    plain = [runner.step(StepBatch(tuple(item._replace(adapter=0) for item in batch.slices))) for batch in batches]
    images = torch.tensor([0, 3, 5, 71]), torch.randn(4, runner.info.dim)
    monkeypatch.setattr(runner._media, "place", lambda batch, device: images if batch is batches[0] else None)
    whole, parts = both(runner, batches, monkeypatch)
    assert whole == parts
    assert whole[0] != plain[0]
    assert whole[1] != plain[1]


def test_a_step_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step of text nothing is left to other calls. Where PyTorch changes logits, head and sampling are two."""
    kernels, called = native.kernels(), []

    def counted(name: str) -> Callable[..., Any]:
        function = kernels._call[name]
        return lambda *arguments: (called.append(name), function(*arguments))[1]

    runner = made(tiny((50, None), max_position=1024))
    for batch in steps(GREEDY, 50):
        runner.step(batch)  # scratch memory is there now
    for name in ("linear", "attention", "sample", "step"):
        monkeypatch.setitem(kernels._call, name, counted(name))
    runner.step(steps(SEEDED, 50)[1])
    runner.step(steps(PENALIZED, 50)[1])
    assert called == ["step", "step"]
    runner.step(steps(SCORED, 50)[1])
    assert called == ["step", "step", "step", "linear", "sample"]


@pytest.mark.parametrize("place", ["page", "block", "token", "negative", "position"])
def test_what_the_model_does_not_have_is_not_read(place: str) -> None:
    """Such a step is an error that says what is missing; the kernel reads nothing beside its memory."""
    runner = made(tiny((50, None)), max_model_len=128)
    item = part(0, 0, 40, GREEDY, 40, 50)
    broken = {
        "page": item._replace(tables=(item.tables[0], PageTable(0, item.tables[1].pages[:1]))),
        "block": item._replace(tables=(item.tables[0], PageTable(1, item.tables[1].pages))),
        "token": item._replace(tokens=[*item.tokens[:39], WIDTH]),
        "negative": item._replace(tokens=[-1, *item.tokens[1:]]),
        "position": part(0, 100, 129, GREEDY, 129, 50),
    }[place]
    with pytest.raises(ValueError, match=r"has no page|out of range"):
        runner.step(StepBatch((broken,)))
