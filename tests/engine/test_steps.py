"""The records of steps, and what a step costs."""

import pytest

from model.sampling_params import SamplingParams
from service.engine.picture import Picture
from service.engine.steps import WATCHED_SECONDS, StepCost, StepRecorder
from tests.engine.driving import Drive
from tests.fakes import make_info, parrot


def test_the_cost_of_steps_is_the_line_through_them() -> None:
    cost = StepCost()
    assert cost.line == (0.0, 0.0)
    for rows in (1, 2, 4, 512, 3):
        cost.note(rows, 0.01 + 0.002 * rows)
    assert cost.line == pytest.approx((0.01, 0.002))


def test_a_change_of_speed_is_learnt() -> None:
    cost = StepCost()
    for factor in (1, 3):
        for n in range(500):
            cost.note(1 + n % 9, factor * (0.01 + 0.002 * (1 + n % 9)))
    assert cost.line == pytest.approx((0.03, 0.006), rel=0.05)


def test_steps_of_one_size_have_no_slope() -> None:
    cost = StepCost()
    for _ in range(100):
        cost.note(8, 0.04)
    base, per_row = cost.line
    assert base + 8 * per_row == pytest.approx(0.04)
    assert per_row >= 0 <= base


def test_rows_are_counted_by_kind_while_somebody_looks() -> None:
    now = [0.0]
    recorder = StepRecorder(lambda: now[0])
    drive = Drive(make_info(), say=parrot, max_step_tokens=8)
    drive.submit(1, [56, 57, 58] * 4, SamplingParams(max_tokens=80, prompt_lookup_num_tokens=3))
    recorder.take()
    taken: list[Picture] = []
    while drive.scheduler.has_work:
        now[0] += 2.0
        batch = drive.scheduler.plan()
        output = drive.runner.step(batch)
        recorder.note(batch, output, batch.n_tokens, 0.5)
        drive.scheduler.commit(output)
        taken.append(recorder.take())
    steps = [step for picture in taken for step in picture.steps]
    assert [step.n for step in steps] == list(range(1, len(taken) + 1))
    assert {picture.seconds for picture in taken} == {2.0}
    assert sum(picture.generated for picture in taken) == 80
    assert sum(picture.prompt for picture in taken) == sum(step.prompt for step in steps) == 12
    assert sum(step.draft for step in steps) == drive.scheduler.stats().draft_tokens > 0
    assert sum(step.decode for step in steps) == len(steps) - 2  # the prompt takes two
    now[0] += WATCHED_SECONDS + 1
    recorder.note(batch, output, 1, 0.5)
    assert recorder.take().steps == ()
