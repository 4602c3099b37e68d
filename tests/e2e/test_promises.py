"""No bit of tokens or logprobs depends on how a request is served, on the first layers of the real network.

The schemes are int8, a file's own blocks, bfloat16 and NVFP4. test_embedded.py tests the full depth over HTTP."""

from dataclasses import replace
from typing import Any

import pytest

from model.step.runner import ModelRunner
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.conftest import Load
from tests.e2e.served import COUNTING, GREEDY, SEEDED, SERVED, prompt
from tests.e2e.without_server import Answer, serve, serve_with


@pytest.fixture(scope="module", params=SERVED, ids=lambda options: "-".join(map(str, options.values())))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def runner(options: dict[str, Any], load_short: Load) -> ModelRunner:
    made = load_short(**options)
    schemes = {"auto": "int4", "int8": "int8", "none": "none"}
    assert made.info.description["quantize"] == schemes[options.get("quantize", "none")]
    assert made.info.description["kernels"].startswith("native")
    return made


MINE = [(prompt(0, 90), GREEDY), (prompt(1, 37), SEEDED)]


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[Answer]:
    return [serve(runner, [item])[0][0] for item in MINE]


def test_packed_with_others(runner: ModelRunner, alone: list[Answer]) -> None:
    n = 16
    others = [(prompt(2 + i, 3 + 9 * i), GREEDY) for i in range(n)]
    answers, _ = serve(runner, [*others[: n // 2], *MINE, *others[n // 2 :]])
    assert answers[n // 2 : n // 2 + 2] == alone


@pytest.mark.each
@pytest.mark.parametrize("max_step_tokens", [7, 50])
def test_in_other_chunks(runner: ModelRunner, alone: list[Answer], max_step_tokens: int) -> None:
    assert serve(runner, MINE, max_step_tokens)[0] == alone


def test_from_cached_pages(runner: ModelRunner, alone: list[Answer]) -> None:
    scheduler = Scheduler(runner.info, max_sequences=8, max_step_tokens=512)
    assert serve_with(scheduler, runner, MINE) == alone
    assert serve_with(scheduler, runner, MINE) == alone
    assert scheduler.stats().hit_tokens >= 96


def test_from_a_part_of_a_cached_page(runner: ModelRunner, alone: list[Answer]) -> None:
    """Others share the first tokens with each, an odd and an even number, and have as many of their own behind."""
    scheduler = Scheduler(runner.info, max_sequences=8, max_step_tokens=512)
    others = [(tokens[:n] + prompt(9, n), params) for n, (tokens, params) in zip((51, 20), MINE, strict=True)]
    serve_with(scheduler, runner, others)
    assert serve_with(scheduler, runner, MINE) == alone
    assert scheduler.stats().hit_tokens == 51 + 20


@pytest.mark.each
@pytest.mark.parametrize("drafts", [None, 8])
def test_with_speculation(runner: ModelRunner, drafts: int | None) -> None:
    """Some prompts repeat themselves. Requests are greedy, seeded, or have penalties. Many draft tokens are wrong."""
    repeating = prompt(5, 12) * 4
    penalized = replace(SEEDED, temperature=0.3, repetition_penalty=1.05, frequency_penalty=0.02, min_tokens=5)
    plain = [(repeating, GREEDY), (repeating, SEEDED), (repeating[5:], penalized), *MINE]
    plain = [(tokens, replace(params, max_tokens=24, prompt_lookup_num_tokens=0)) for tokens, params in plain]
    guessing = [(tokens, replace(params, prompt_lookup_num_tokens=drafts)) for tokens, params in plain]
    alone = [serve(runner, [item])[0][0] for item in plain]
    assert [serve(runner, [item])[0][0] for item in guessing] == alone
    answers, scheduler = serve(runner, guessing, max_step_tokens=50)
    assert answers == alone
    stats = scheduler.stats()
    assert stats.drafts("drafted") > stats.drafts("accepted") > 8


@pytest.mark.each
@pytest.mark.parametrize("drafts", [None, 8])
def test_penalties_beside_others_with_and_without_drafts(runner: ModelRunner, drafts: int | None) -> None:
    """The kernel penalizes where no request of the step has logprobs, PyTorch where one has."""
    unscored = replace(COUNTING, temperature=0.3, max_tokens=40, logprobs=None, prompt_lookup_num_tokens=0)
    mine = [(prompt(3, 12) * 4, unscored), (prompt(4, 7) * 5, unscored)]
    guessing = [(tokens, replace(params, prompt_lookup_num_tokens=drafts)) for tokens, params in mine]
    alone = [serve(runner, [item])[0][0] for item in mine]
    answers, scheduler = serve(runner, guessing)
    assert answers == alone
    assert serve(runner, [*guessing, MINE[0]])[0][:2] == alone
    stats = scheduler.stats()
    assert stats.drafts("drafted") > stats.drafts("accepted") > 0


def test_after_preemption(options: dict[str, Any], runner: ModelRunner, load_short: Load) -> None:
    """There are five pages of 32 positions, with keys and values of 3 heads in each of 4 layers. A sequence that drafts
    would end before another needs its pages."""
    head = {"int8": 68, "bfloat16": 128}[runner.info.description["kv_dtype"]]
    small = load_short(max_model_len=128, cache_memory=5 * 32 * 2 * 4 * 3 * head, prompt_lookup="off", **options)
    requests = [(prompt(20 + i, 52), replace(GREEDY, max_tokens=16, ignore_eos=True)) for i in range(2)]
    requests.append((MINE[1][0], replace(COUNTING, ignore_eos=True)))
    answers, scheduler = serve(small, requests)
    assert scheduler.stats().preemptions > 0
    assert answers == [serve(runner, [item])[0][0] for item in requests]
