"""One sequence's fault in the engine: its request ends, the others get the tokens of an undisturbed run, and nothing
that it computed is used again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.batch import StepBatch, StepOutput
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import BROKEN_NUMBERS, ModelRunner
from service.engine.messages import FromEngine, Report, Submit, ToEngine, Update
from tests.engine.driving import Client
from tests.model.driving import checkpoint, run_ahead, tiny

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=20, logprobs=0)
LONG = 70
"""Tokens of a prompt: two pages are full."""
REQUESTS = {1: GREEDY, 2: GREEDY, 3: SEEDED, 4: replace(GREEDY, prompt_lookup_num_tokens=3)}
GUILTY = 2


def prompt(number: int) -> list[int]:
    return [(7 * i + 11 * number + i * i) % 64 for i in range(LONG)]


def submit(number: int, like: int | None = None) -> Submit:
    """The request of this number, or again that of another."""
    like = number if like is None else like
    return Submit(number, prompt(like), REQUESTS[like])


@pytest.fixture(params=["a step at a time", "a step ahead"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModelRunner:
    options = RunnerOptions("", device="cpu", quantize="int8", cache_memory=2**22)
    made = load_from(checkpoint(tiny((5, None))), options, lambda stage, done: None)
    run_ahead(made, monkeypatch, runs_ahead=request.param == "a step ahead")
    return made


class Served(Client):
    """A client that also keeps the last update of each sequence."""

    def __init__(self, runner: ModelRunner, script: list[list[ToEngine]]) -> None:
        self.last: dict[int, Update] = {}
        super().__init__(runner, script, max_sequences=8, max_step_tokens=512)

    def send(self, message: FromEngine) -> None:
        assert isinstance(message, Report)
        self.last.update({update.id: update for update in message.updates})
        super().send(message)


def at_step(
    monkeypatch: pytest.MonkeyPatch, runner: ModelRunner, n_before: int, incident: Callable[[StepBatch], None]
) -> None:
    """Let something happen before the launch of a step with the guilty sequence."""
    launch, left = runner.launch, [n_before]

    def launched(batch: StepBatch) -> Callable[[], StepOutput]:
        if GUILTY in {item.sequence_id for item in batch.slices}:
            left[0] -= 1
            if left[0] == -1:
                incident(batch)
        return launch(batch)

    monkeypatch.setattr(runner, "launch", launched)


SCRIPT: list[list[ToEngine]] = [[submit(number) for number in REQUESTS], *[[]] * 60, [submit(9, like=GUILTY)]]
"""Long after the incident, the same request comes again."""


@pytest.mark.parametrize("n_before", [1, 2, 9])
def test_keys_that_are_no_numbers(runner: ModelRunner, n_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = Served(runner, SCRIPT)
    assert undisturbed.answers[9] == undisturbed.answers[GUILTY]

    def poison(batch: StepBatch) -> None:
        (item,) = (item for item in batch.slices if item.sequence_id == GUILTY)
        runner.pages.layers[1].k[item.tables[1].pages[0]].view(torch.uint8).fill_(255)

    at_step(monkeypatch, runner, n_before, poison)
    check(Served(runner, SCRIPT), undisturbed, BROKEN_NUMBERS, n_before)


@pytest.mark.parametrize("n_before", [0, 1, 9])
@pytest.mark.parametrize("work", ["start", "_collect"])
def test_a_sequence_that_makes_its_steps_raise(
    runner: ModelRunner, work: str, n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Served(runner, SCRIPT)
    owner: Any = runner.executor if work == "start" else runner
    whole: Callable[..., Any] = getattr(owner, work)
    armed: list[int] = []

    def raising(batch: StepBatch, *more: Any, **named: Any) -> Any:
        result = whole(batch, *more, **named)
        if armed and GUILTY in {item.sequence_id for item in batch.slices}:
            raise RuntimeError("not this one")
        return result

    monkeypatch.setattr(owner, work, raising)
    at_step(monkeypatch, runner, n_before, lambda batch: armed.append(1))
    served = Served(runner, SCRIPT)
    check(served, undisturbed, "the engine could not compute this request (RuntimeError)", n_before)


def check(served: Served, undisturbed: Served, fault: str, n_before: int) -> None:
    assert served.finished == {**undisturbed.finished, GUILTY: "error"}
    assert served.last[GUILTY]._replace(draft=None) == Update(GUILTY, finish="error", fault=fault)
    for number in (1, 3, 4, 9):
        assert served.answers[number] == undisturbed.answers[number]
        assert served.logprobs[number] == undisturbed.logprobs[number]
    assert served.answers[GUILTY] == undisturbed.answers[GUILTY][: len(served.answers[GUILTY])]
    assert len(served.answers[GUILTY]) <= n_before
    assert undisturbed.scheduler.stats().hit_tokens > 0
    assert (served.scheduler.stats().hit_tokens == 0) == (fault == BROKEN_NUMBERS or not n_before), "reused pages"
