"""The loop with several steps in flight, of a runner that runs ahead or of a pipeline: the same answers as with one."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from model.batch import BROKEN_NUMBERS, DeviceLost, StepBatch, StepOutput
from model.sampling_params import SamplingParams
from service.engine.loop import MAX_FAILED_STEPS
from service.engine.messages import Abort, FromEngine, Report, Submit, ToEngine
from tests.engine.driving import Client, copied, expected
from tests.fakes import END, FAULTY, LOST, AheadRunner, FakeRunner, PipelineRunner, make_info, parrot

INFO = make_info(pools=((None, 24), (5, 16)))


def a_request(rng: Random) -> tuple[list[int], SamplingParams]:
    """Prompts with common beginnings, some parameters that read the output, and some end tokens."""
    beginning = [33 + i for i in range(rng.choice((0, 4, 8, 12)))]
    prompt = [*beginning, *(rng.randint(33, 120) for _ in range(rng.randint(1, 9)))]
    looking_back: list[dict[str, Any]] = [{"repetition_penalty": 1.1}, {"prompt_lookup_num_tokens": 3}]
    more = rng.choice(looking_back) if rng.random() < 0.15 else {}
    ends = {"temperature": 0.0, "stop_token_ids": (END,)} if rng.random() < 0.5 else {}
    return prompt, SamplingParams(max_tokens=rng.randint(0, 14), **ends, **more)


def recording(runner: FakeRunner) -> list[tuple[StepBatch, list[tuple[Any, ...]]]]:
    """The steps that the runner launches from now on, with the content of each slice at its launch."""
    launched: list[tuple[StepBatch, list[tuple[Any, ...]]]] = []
    launch = runner.launch

    def record(batch: StepBatch) -> Callable[[], StepOutput]:
        launched.append((batch, copied(batch)))
        return launch(batch)

    runner.launch = record  # type: ignore[method-assign]
    return launched


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_answers_are_those_of_one_step_at_a_time(seed: int, pipeline: int) -> None:
    """Submits, aborts, preemptions and ends at any step, with pages for about two sequences.

    Nothing that happens while a step is in flight, or later, changes a slice of it.
    """
    rng = Random(seed)
    requests = {number: a_request(rng) for number in range(12)}
    script: list[list[ToEngine]] = [[] for _ in range(60)]
    aborted = set()
    for number, (prompt, params) in requests.items():
        at = rng.randrange(40)
        script[at].append(Submit(number, prompt, params, 0))
        if rng.random() < 0.2:
            aborted.add(number)
            script[at + rng.randrange(1, 15)].append(Abort(number))
    several = replace(INFO, pipeline=pipeline)
    runner = PipelineRunner(several, say=parrot) if pipeline > 1 else AheadRunner(INFO, say=parrot)
    launched = recording(runner)
    client = Client(runner, script)
    assert runner.max_in_flight == max(pipeline, 2)
    assert all(copied(batch) == copy for batch, copy in launched)
    for number, (prompt, params) in requests.items():
        whole = expected(prompt, params, say=parrot)
        if number in aborted and number not in client.finished:
            assert client.answers[number] == whole[: len(client.answers[number])]
        else:
            assert client.answers[number] == whole
            assert client.finished[number] == ("stop" if whole and whole[-1] in params.stop_token_ids else "length")


def test_progress_is_reported_up_to_the_first_token() -> None:
    """The last chunk of the prompt may be a single token. The next step starts before the loop has read this token."""
    seen: list[tuple[int | None, int]] = []

    class Watching(Client):
        def send(self, message: FromEngine) -> None:
            assert isinstance(message, Report)
            seen.extend((update.processed, len(update.tokens)) for update in message.updates)
            super().send(message)

    params = SamplingParams(max_tokens=3, return_progress=True)
    assert Watching(AheadRunner(INFO), [[Submit(1, list(range(40, 57)), params, 0)]]).n_ahead
    assert seen == [(8, 0), (16, 0), (17, 1), (None, 1), (None, 1)]


class Failing(AheadRunner):
    """A runner that loses one step, at its launch or when it is read; with `recovers` it computes the step again."""

    def __init__(self, n_before: int, *, launching: bool = False, recovers: bool = False) -> None:
        super().__init__(INFO)
        self.in_flight = 0  # when it failed, the failed step among them
        self._n_before = n_before
        self._launching = launching
        self._recovers = recovers

    def _fails(self) -> bool:
        self._n_before -= 1
        if self._n_before == -1:
            self.in_flight = self._in_flight
        return self._n_before == -1

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        wait = super().launch(batch)
        if self._launching and self._fails():
            self._in_flight -= 1
            raise RuntimeError("the device is gone for a moment")
        return wait

    def read(self, output: StepOutput, again: Callable[[], StepOutput]) -> StepOutput:
        if not self._launching and self._fails():
            self.in_flight += 1
            if not self._recovers:
                raise RuntimeError("the device is gone for a moment")
            return again()
        return output


@pytest.mark.parametrize("n_before", range(12))
def test_a_step_computed_again_with_the_next_in_flight_loses_no_token(n_before: int) -> None:
    params = SamplingParams(max_tokens=12)
    runner = Failing(n_before, recovers=True)
    client = Client(runner, [[Submit(n, [40 + n], params, 0) for n in range(3)]])
    assert runner.in_flight == (2 if n_before < 11 else 1)
    assert client.answers == {n: expected([40 + n], params) for n in range(3)}
    assert set(client.finished.values()) == {"length"}


@pytest.mark.parametrize("n_before", range(2, 8))
def test_a_step_that_fails_when_it_is_read_ends_its_requests_and_those_of_the_next(n_before: int) -> None:
    """The answer has every token of the steps before the failed one, and none of the step after it."""
    params = SamplingParams(max_tokens=12)
    later: list[ToEngine] = [Submit(2, [50, 51], params, 0)]
    runner = Failing(n_before)
    client = Client(runner, [[Submit(1, [40], params, 0)], *[[]] * 12, later])
    assert runner.in_flight == 2
    assert client.finished == {1: "error", 2: "length"}
    assert client.answers == {1: expected([40], params)[:n_before], 2: expected([50, 51], params)}


@pytest.mark.parametrize("n_before", range(2, 8))
def test_a_step_that_fails_when_it_is_launched_leaves_the_one_in_flight_its_tokens(n_before: int) -> None:
    """One request ends with the last token in flight: it is answered, and only the other one fails."""
    params = SamplingParams(max_tokens=12)
    tokens = expected([41], params)[:n_before]
    ends = SamplingParams(max_tokens=12, stop_token_ids=(tokens[-1],))
    runner = Failing(n_before, launching=True)
    client = Client(runner, [[Submit(0, [40], params, 0), Submit(1, [41], ends, 0)]])
    assert runner.in_flight == 2
    assert client.answers == {0: expected([40], params)[:n_before], 1: expected([41], ends)}
    assert client.finished == {0: "error", 1: "stop"}


class Gone(AheadRunner):
    """A runner whose device goes away several times, each time with a step in flight: launch and read both fail."""

    def __init__(self, times: int) -> None:
        super().__init__(INFO)
        self.times, self._lost = times, False

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        if self.times and self._in_flight:
            self.times, self._lost = self.times - 1, True
            raise RuntimeError("the device is gone for a moment")
        return super().launch(batch)

    def read(self, output: StepOutput, again: Callable[[], StepOutput]) -> StepOutput:
        if self._lost:
            self._lost = False
            raise RuntimeError("what was in flight is lost")
        return output


def test_a_launch_that_fails_and_the_read_before_it_are_one_incident() -> None:
    """The engine ends after MAX_FAILED_STEPS incidents. There is one fewer here: counted twice, they would end it."""
    params = SamplingParams(max_tokens=4)
    n = MAX_FAILED_STEPS - 1
    script: list[list[ToEngine]] = [[Submit(i, [40 + i], params, 0)] for i in range(n + 1)]
    runner = Gone(n)
    client = Client(runner, [part for request in script for part in (request, [], [], [], [])])
    assert runner.times == 0
    assert client.finished == {**dict.fromkeys(range(n), "error"), n: "length"}
    assert client.answers[n] == expected([40 + n], params)


def test_an_error_that_repeats_is_raised() -> None:
    class Broken(AheadRunner):
        def step(self, batch: StepBatch) -> StepOutput:
            raise RuntimeError("the device is gone")

    script: list[list[ToEngine]] = [[Submit(i, [40], SamplingParams(), 0)] for i in range(MAX_FAILED_STEPS)]
    with pytest.raises(RuntimeError, match="the device is gone"):
        Client(Broken(INFO), script)


def test_a_lost_device_ends_the_engine_at_once() -> None:
    """No request ends: the service gives them to the next engine."""

    class Lost(AheadRunner):
        def step(self, batch: StepBatch) -> StepOutput:
            raise DeviceLost("the GPU computes nothing more")

    with pytest.raises(DeviceLost, match="computes nothing more"):
        Client(Lost(INFO), [[Submit(1, [40], SamplingParams(), 0)]])


def test_what_can_wait_is_done_while_nothing_is_to_do() -> None:
    class Resting(AheadRunner):
        pieces = 3

        def idle(self) -> bool:
            assert not self._in_flight
            self.pieces = max(0, self.pieces - 1)
            return self.pieces > 0

    runner = Resting(INFO)
    client = Client(runner, [[], [Submit(1, [40], SamplingParams(max_tokens=3), 0)]])
    assert runner.pieces == 0
    assert client.finished == {1: "length"}


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
@pytest.mark.parametrize("beside", [0, 1])
def test_an_engine_whose_every_sequence_is_faulty_is_given_up(kind: type[FakeRunner], beside: int) -> None:
    """It is kept while a step gives another sequence a token, and for fewer faults: each counts once."""
    script: list[list[ToEngine]] = [[Submit(i, [40, FAULTY], SamplingParams(), 0)] for i in range(MAX_FAILED_STEPS)]
    script[0] += [Submit(100 + i, [50], SamplingParams(max_tokens=9), 0) for i in range(beside)]
    script = [part for request in script for part in (request, [], [])]
    if beside:
        client = Client(kind(INFO), script)
        assert client.finished == {**dict.fromkeys(range(MAX_FAILED_STEPS), "error"), 100: "length"}
        assert client.answers[100] == expected([50], SamplingParams(max_tokens=9))
        return
    with pytest.raises(RuntimeError, match=f"for every sequence: {BROKEN_NUMBERS}"):
        Client(kind(INFO), script)
    assert set(Client(kind(INFO), script[:-3]).finished.values()) == {"error"}


def test_adapters_whose_every_sequence_is_faulty_are_no_fault_of_the_engine() -> None:
    script: list[list[ToEngine]] = [
        [Submit(i, [40, FAULTY], SamplingParams(), 0, adapter=1)] for i in range(2 * MAX_FAILED_STEPS)
    ]
    client = Client(FakeRunner(replace(INFO, max_adapters=1)), [part for one in script for part in (one, [], [])])
    assert client.finished == dict.fromkeys(range(2 * MAX_FAILED_STEPS), "error")


def test_a_grammar_process_that_is_lost_is_no_fault_of_the_engine() -> None:
    """Its steps say nothing about the cost of steps: what has a fault may not have been computed."""
    lost = SamplingParams(grammar=LOST)
    client = Client(FakeRunner(INFO), [[Submit(i, [40], lost, 0)] for i in range(2 * MAX_FAILED_STEPS)])
    assert client.finished == dict.fromkeys(range(2 * MAX_FAILED_STEPS), "error")
    cost = client.scheduler.prompts.cost
    assert (cost.token, cost.decode(1)) == (0, 0)
