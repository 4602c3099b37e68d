"""Targets of single sequences: those of the server hold for all others."""

from dataclasses import replace

import pytest

from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from service.engine.scheduling.budget import PromptBudget
from service.engine.scheduling.scheduler import Scheduler
from tests.fakes import FakeRunner, make_info

PLAIN = Submit(1, [1, 2, 3], SamplingParams(max_tokens=8))
CASES = [([0.0, 0.0], 0.1), ([0.5, 0.0], 0.1), ([0.5, 0.3], 0.3), ([0.05, 0.5], 0.05)]


@pytest.mark.parametrize(("own", "strictest"), CASES)
def test_the_strictest_of_those_that_decode_counts(own: list[float], strictest: float) -> None:
    runner = FakeRunner(make_info())
    scheduler = Scheduler(runner.info, max_sequences=4, max_step_tokens=64, prompts=PromptBudget(1.0, 0.1))
    for id, between in enumerate(own, 1):
        scheduler.submit(replace(PLAIN, id=id, between=between))
    for _ in range(3):
        scheduler.commit(runner.step(scheduler.plan()))
    assert scheduler.prompts.strictest == strictest


def test_a_prompt_with_a_strict_target_counts_as_one_that_came_earlier() -> None:
    budget = PromptBudget(1.0, 0.1)
    scheduler = Scheduler(make_info(), max_sequences=4, max_step_tokens=64, prompts=budget, clock=lambda: 9.0)
    for id, first in enumerate((0.0, 0.25, 3.0), 1):
        scheduler.submit(replace(PLAIN, id=id, first=first))
    assert sorted(waited for waited, _ in scheduler._waiting([])) == [-2.0, 0.0, 0.75]
