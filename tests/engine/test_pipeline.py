"""Several steps in flight in the stages of a pipeline: who is in which, and who must wait."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from model.batch import RunnerInfo, StepBatch, StepOutput
from model.sampling_params import SamplingParams
from service.engine import loop
from service.engine.loop import EngineLoop
from service.engine.messages import FromEngine, Stop, Submit, ToEngine
from service.engine.scheduling import prompt_lookup
from service.engine.scheduling.scheduler import Scheduler
from tests.engine.driving import Drive, expected
from tests.engine.images import ImageDrive, Picture, info_with_images, prompt_of, shape
from tests.fakes import PipelineRunner, make_info

LONG = SamplingParams(max_tokens=20)


def stages(n: int, **more: Any) -> RunnerInfo:
    return replace(make_info(**more), pipeline=n)


@pytest.mark.parametrize(("n", "depth", "sizes"), [(8, 2, [4, 4]), (7, 3, [3, 3, 1]), (2, 4, [1, 1])])
def test_sequences_that_decode_are_divided_evenly(n: int, depth: int, sizes: list[int]) -> None:
    drive = Drive(stages(depth, pools=((None, 200),)), max_sequences=8, max_step_tokens=64)
    for number in range(n):
        drive.submit(number, [number + 1], LONG)
    for _ in range(4 * depth):
        drive.step()
    in_flight = [len(batch.slices) for batch, _ in drive.flights] + [len(drive.scheduler.plan().slices)]
    assert sorted(in_flight, reverse=True)[: len(sizes)] == sizes


def test_those_who_waited_longest_go_first() -> None:
    """Three sequences in two steps at a time: two, the third, and then the ones that have waited."""
    drive = Drive(stages(2), max_step_tokens=8)
    for number in range(3):
        drive.submit(number, [number + 1] * 2, LONG)
    for _ in range(20):
        drive.step()
    steps = [[item.sequence_id for item in batch.slices] for batch in drive.runner.steps[4:]]
    assert {tuple(sorted((*one, *other))) for one, other in pairwise(steps)} == {(0, 1, 2)}


def test_those_who_waited_longest_go_first_also_without_a_second_step_in_flight() -> None:
    """Each step has half of the four sequences, and lands before the next one begins."""
    drive = Drive(stages(2, pools=((None, 200),)), max_step_tokens=16)
    for number in range(4):
        drive.submit(number, [number + 1], LONG)
    for _ in range(12):
        drive.launch()
        drive.land()
    lengths = [len(drive.answers[number]) for number in range(4)]
    assert min(lengths) > 4
    assert max(lengths) - min(lengths) <= 1


def test_a_sequence_that_is_preempted_while_its_step_is_planned_is_not_in_it() -> None:
    """Three decode in turns, two in a step. The oldest needs a page when the youngest has had its turn in this step."""
    drive = Drive(stages(2, pools=((None, 6),), max_model_len=16), max_step_tokens=16)
    prompts = {number: [number + 1] * n for number, n in enumerate((4, 3, 4))}
    for number, prompt in prompts.items():
        drive.submit(number, prompt, SamplingParams(max_tokens=10))
    preemptions = 0
    while drive.scheduler.has_work:
        batch = drive.launch()
        if drive.scheduler.stats().preemptions > preemptions == 0:
            preempted = [item.id for item in drive.scheduler.view({}).waiting]
            assert preempted == [2]
            assert [item.sequence_id for item in batch.slices] == [0]
        preemptions = drive.scheduler.stats().preemptions
        while drive.flights:
            drive.land()
    assert preemptions > 0
    assert drive.answers == {
        number: expected(prompt, SamplingParams(max_tokens=10)) for number, prompt in prompts.items()
    }


def test_chunks_of_a_prompt_follow_each_other() -> None:
    """The steps in flight share the 16 tokens that a step may have; the last one has the rest of the prompt."""
    drive = Drive(stages(2), max_step_tokens=16)
    drive.submit(1, list(range(1, 21)), LONG)
    drive.step()
    drive.launch()
    assert [[(item.start, item.stop) for item in batch.slices] for batch, _ in drive.flights] == [[(0, 8)], [(8, 16)]]
    drive.land()
    assert [(item.start, item.stop) for item in drive.launch().slices] == [(16, 20)]
    drive.land()
    assert not drive.launch(), "its token is not known"
    drive.run()
    assert drive.answers[1] == expected(list(range(1, 21)), LONG)


def test_the_youngest_is_preempted_once_its_step_has_landed() -> None:
    """The younger one takes the last of five pages of four tokens, then the older one needs a third page."""
    drive = Drive(stages(2, pools=((None, 5),), max_model_len=16), max_step_tokens=16)
    for number in (1, 2):
        drive.submit(number, [number] * (6 + number), SamplingParams(max_tokens=8))
        assert [item.sequence_id for item in drive.launch().slices] == [number]
    for number in (1, 2):
        drive.land()
        assert [item.sequence_id for item in drive.launch().slices] == [number]
    drive.land()
    assert not drive.launch()
    assert drive.scheduler.stats().preemptions == 0
    drive.land()
    assert [item.sequence_id for item in drive.launch().slices] == [1]
    assert drive.scheduler.stats().preemptions == 1
    drive.run()
    assert drive.answers == {
        number: expected([number] * (6 + number), SamplingParams(max_tokens=8)) for number in (1, 2)
    }


def test_a_draft_leaves_a_page_to_each_sequence_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft of 8 tokens would take the last three of four pages."""
    monkeypatch.setattr(prompt_lookup, "FIRST_ACCEPTANCES", (0.99,) * 4)
    drive = Drive(stages(2, pools=((None, 4),), max_model_len=16), max_step_tokens=64)
    drive.submit(1, [58] * 4, SamplingParams(max_tokens=3))
    drive.launch()
    drive.submit(2, [57] * 4, SamplingParams(max_tokens=12, prompt_lookup_num_tokens=8))
    assert [(item.sequence_id, item.n_draft) for item in drive.launch().slices] == [(2, 4)]
    drive.run()


def test_an_image_is_read_once_its_step_has_landed() -> None:
    """It may have a fault. The work on it goes on in each step, and so do other sequences."""
    info = info_with_images(pools=((None, 64),))
    drive = ImageDrive(replace(info, pipeline=2), max_step_tokens=8)
    drive.ask(1, prompt_of(Picture(2, 3, b"\x01"), [4, 5]), SamplingParams(max_tokens=3))
    assert shape(drive.launch()) == ([], [(1, 0, 12)])
    assert shape(drive.launch()) == ([], [(1, 12, 24)])
    drive.land()
    assert not drive.launch()
    drive.land()
    assert shape(drive.launch()) == ([(1, 0, 4)], [])
    drive.run()
    assert len(drive.answers[1]) == 3


def test_who_awaits_an_image_leaves_the_turn_to_others() -> None:
    """There is memory for one image. Two sequences have one token of their prompts left, and one of them holds it.

    The other waits for its image, and has waited longest. It may not take the step's share of two tokens.
    """
    drive = ImageDrive(replace(info_with_images(media_tokens=8, pools=((None, 100),)), pipeline=4), max_step_tokens=10)
    one, other = prompt_of([5], Picture(1, 8, b"\1")), prompt_of([6, 6], Picture(1, 6, b"\2"))
    for number, prompt in enumerate((one, other)):
        drive.ask(number, prompt, SamplingParams(max_tokens=2))
        drive.run()
    for number, prompt in enumerate((one, one, other), 2):
        drive.ask(number, prompt, SamplingParams(max_tokens=2))
    for _ in range(80):
        drive.launch()
        while drive.flights:
            drive.land()
    assert [len(drive.answers[number]) for number in (2, 3, 4)] == [2, 2, 2]


class Timed(PipelineRunner):
    """Two stages of `seconds` each, on a clock of its own."""

    def __init__(self, seconds: float) -> None:
        super().__init__(stages(2, pools=((None, 200),)))
        self.now = 1.0
        self._seconds = seconds
        self._free = [0.0, 0.0]  # when each stage can begin the next step

    def monotonic(self) -> float:
        return self.now

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        wait = super().launch(batch)
        first = max(self.now, self._free[0]) + self._seconds
        second = max(first, self._free[1]) + self._seconds
        self._free = [first, second]

        def timed() -> StepOutput:
            self.now = max(self.now, second)
            return wait()

        return timed


@pytest.mark.parametrize(("n", "rows"), [(1, 1), (6, 6)])
def test_a_step_costs_what_lies_between_two_tokens_of_a_sequence(
    n: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sequence takes both stages for each token. Six take as long, three in each stage: 2 s for 6 rows."""
    runner = Timed(1.0)
    monkeypatch.setattr(loop, "time", runner)
    scheduler = Scheduler(runner.info, max_sequences=8, max_step_tokens=64)
    script: list[list[ToEngine]] = [[Submit(number, [number + 1], LONG, 0) for number in range(n)]]
    sent: list[FromEngine] = []
    noted = list[tuple[int, int, float, float]]()
    monkeypatch.setattr(scheduler.prompts.cost, "note", lambda *counts: noted.append(counts))
    engine = EngineLoop(
        runner, scheduler, lambda block: script.pop() if script else [Stop()] if block else [], sent.append
    )
    engine.run()
    assert noted[len(noted) // 2] == (rows, 0, 0, 2.0)
