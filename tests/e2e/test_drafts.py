"""Answers with drafts of all kinds, beside any others, are those of a request alone without drafts, to the bit."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.conftest import Load
from tests.e2e.drafted import served, some_request, without_drafts
from tests.e2e.short_adapters import save_short
from tests.e2e.without_server import answers_to
from tests.model.checkpoint.adapter_files import ALL


@pytest.fixture(scope="module", params=["none", "draft model"])
def runner(
    load_short: Load, short_model: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelRunner]:
    """The model drafts for itself: in 4 bits, or as a draft model in the blocks of its file."""
    adapter = tmp_path_factory.mktemp("adapter")
    save_short(adapter, seed=0, targets=ALL, r=8)
    drafts = {"draft_model": str(short_model)} if request.param == "draft model" else {"draft": "self"}
    quantize = "int8" if request.param == "draft model" else request.param
    made = load_short(**drafts, quantize=quantize, adapters=((1, str(adapter)),))
    assert made.info.own_draft_tokens
    yield made
    made._masks.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 12))])
def test_answers_are_those_without_drafts(runner: ModelRunner, seed: int) -> None:
    rng = random.Random(seed)
    requests = [some_request(rng, number) for number in range(12)]
    answers, scheduler = served(runner, requests, 6)
    assert answers == without_drafts(runner, requests)
    stats = scheduler.stats()
    assert stats.self_drafted + stats.draft_model_drafted > stats.self_accepted + stats.draft_model_accepted > 20
    assert stats.prompt_lookup_drafted > 0


def test_after_preemption_and_after_the_loss_of_an_engine(runner: ModelRunner) -> None:
    """Four pages hold one of the longest sequences. Another engine has computed half of each answer."""
    rng = random.Random(5)
    some = [some_request(rng, number) for number in range(8)]
    requests = [replace(item, params=replace(item.params, max_tokens=60)) for item in some]
    plain = without_drafts(runner, requests)
    few = tuple(replace(pool, n_pages=4) for pool in runner.info.pools)
    answers, scheduler = served(runner, requests, 6, pools=few)
    assert answers == plain
    assert scheduler.stats().preemptions
    halves = [[token for token, _ in answer[: len(answer) // 2]] for answer in plain]
    resumed = [replace(item, output=half) for item, half in zip(requests, halves, strict=True)]
    for answer, whole, half in zip(served(runner, resumed, 6)[0], plain, halves, strict=True):
        assert answer == whole[len(half) :]


def test_one_that_writes_an_earlier_answer_again_drafts_from_it(runner: ModelRunner) -> None:
    """Another key, or another salt, does not."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, prompt_lookup_num_tokens=8)
    first = Submit(0, [50, 60, 70, 80], params, tenant="a")
    others = [replace(first, id=1), replace(first, id=2, tenant="b"), replace(first, id=3, cache_salt="s")]
    info = replace(runner.info, own_draft_tokens=0)
    for other, may in zip(others, (True, False, False), strict=True):
        scheduler = Scheduler(info, max_sequences=16, max_step_tokens=64)
        (alone,) = answers_to(scheduler, runner, [first])
        before = scheduler.stats().answers_accepted
        assert answers_to(scheduler, runner, [replace(other, id=0)]) == [alone]
        assert (scheduler.stats().answers_accepted - before > 10) == may
