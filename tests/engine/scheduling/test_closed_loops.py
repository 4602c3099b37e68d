"""Clients that send their next request when an answer ends, under simulated costs, and what chunks do to them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median

import pytest

from model.batch import SliceOutput, StepBatch, StepOutput
from model.sampling_params import SamplingParams
from service.engine.budget import Cost, PromptBudget
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.fakes import make_info

TARGET = 0.02
COST = Cost(0.003, 0.0004, 0.00025, 1e-7)
"""Seconds of a small model on two cores, of which a server takes its part."""
ANSWER = SliceOutput((7,))


@dataclass
class Loop:
    """`streams` clients with prompts of `n_prompt` tokens and answers of `n_output`, until `n_requests` were sent."""

    target: float
    streams: int
    n_requests: int
    n_prompt: int = 128
    n_output: int = 64
    seconds: Callable[[float, int, int, float], float] = lambda now, *counts: COST.seconds(*counts)
    now: float = 0.0
    firsts: list[float] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)  # sequences that decode, and seconds

    def run(self) -> "Loop":
        random, budget, sent = Random(0), PromptBudget(self.target), dict[int, float]()
        info = make_info(page_size=32, pools=((None, 8000),), max_model_len=4096)
        engine = Scheduler(info, max_sequences=64, max_step_tokens=512, clock=lambda: self.now, prompts=budget)

        def send() -> None:
            number = len(sent)
            if number < self.n_requests:
                prompt = [number + 1] * self.n_prompt
                engine.submit(Submit(number, prompt, SamplingParams(temperature=0.0, max_tokens=self.n_output)))
                sent[number] = self.now

        for _ in range(self.streams):
            send()
        while engine.has_work:
            batch = engine.plan()
            counts = batch.n_tokens - batch.n_prompt, batch.n_prompt, batch.n_pairs
            seconds = self.seconds(self.now, *counts) * random.gauss(1, 0.05)
            self.now += seconds
            self.steps.append((counts[0], seconds))
            budget.note(*counts, seconds)
            for update in engine.commit(sampled(batch)):
                if update.queued is not None:
                    self.firsts.append(self.now - sent[update.id])
                if update.finish:
                    send()
        return self

    @property
    def longest(self) -> float:
        """Seconds of the longest step that holds up another token."""
        return max(seconds for rows, seconds in self.steps if rows)


def sampled(batch: StepBatch) -> StepOutput:
    return StepOutput(tuple(ANSWER if item.samples else SliceOutput() for item in batch.slices))


def test_streams_do_not_wait_for_prompts_that_wait_for_streams() -> None:
    """If only the sequences that decode counted, few of them would leave prompts little time, and stay few."""
    free, found = Loop(0.0, 32, 256).run(), Loop(TARGET, 32, 256).run()
    assert found.now < 1.05 * free.now
    assert median(found.firsts) < 3 * median(free.firsts)
    assert found.longest < 0.6 * free.longest


@pytest.mark.parametrize("streams", [32, 64])
def test_the_first_burst_does_not_mislead(streams: int) -> None:
    """Prompt tokens cost twice as much beside sequences that decode, as they do where a server works beside."""

    def seconds(now: float, rows: int, tokens: int, pairs: float) -> float:
        return COST.seconds(rows, tokens * (1 if rows else 0.5), pairs)

    found = Loop(TARGET, streams, 2 * streams, seconds=seconds).run()
    assert found.longest < 3.5 * COST.seconds(streams, 0)


def test_a_deep_prompt_holds_streams_up_no_longer_than_its_beginning() -> None:
    """The last token of a prompt costs 2.2 times as much as the first."""
    found = Loop(TARGET, 4, 8, 3000, 400).run()
    steps = sorted(seconds for rows, seconds in found.steps if rows)
    assert steps[int(0.99 * len(steps))] < 1.25 * TARGET
