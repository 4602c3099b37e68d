"""The records of steps."""

from model.sampling_params import SamplingParams
from service.engine.picture import Picture
from service.engine.steps import WATCHED_SECONDS, StepRecorder
from tests.engine.driving import Drive
from tests.fakes import make_info, parrot


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
