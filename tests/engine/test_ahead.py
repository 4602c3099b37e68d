"""Steps planned while the one before is computed: which they are, and that their answers stay the same."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from model.batch import RunnerInfo
from model.sampling_params import SamplingParams
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client, Drive, expected
from tests.fakes import AheadRunner, make_info

LONG = SamplingParams(max_tokens=20)


def ahead(**more: Any) -> RunnerInfo:
    return replace(make_info(**more), runs_ahead=True)


def test_with_steady_arrivals_nearly_every_step_is_launched_ahead() -> None:
    """A prompt of one to five chunks comes every third step: most steps have a part of one."""
    rng = Random(1)
    requests = {n: ([rng.randrange(1, 200) for _ in range(rng.randint(5, 80))], rng.randint(8, 24)) for n in range(100)}
    script: list[list[ToEngine]] = []
    for number, (prompt, max_tokens) in requests.items():
        script += [[Submit(number, prompt, SamplingParams(max_tokens=max_tokens))], [], []]
    runner = AheadRunner(make_info(pools=((None, 400), (9, 200)), max_model_len=128))
    client = Client(runner, script, max_sequences=16, max_step_tokens=24)
    assert client.answers == {n: expected(prompt, SamplingParams(max_tokens=m)) for n, (prompt, m) in requests.items()}
    mixed = sum(any(item.start < item.n_prompt for item in step.slices) for step in runner.steps)
    assert mixed > 0.5 * len(runner.steps)
    assert runner.n_ahead >= 0.95 * len(runner.steps)


def test_the_last_chunk_of_a_prompt_is_followed_like_a_decoding_slice() -> None:
    """17 tokens in chunks of 8: the third chunk samples, and the step after it has a token that is not known."""
    drive = Drive(ahead())
    drive.submit(1, list(range(1, 18)), LONG)
    drive.submit(2, list(range(1, 4)), replace(LONG, max_tokens=1))
    seen = []
    for _ in range(5):
        drive.step()
        seen.append([(item.sequence_id, item.start, item.stop) for item in drive.flights[-1][0].slices])
    assert seen == [[(1, 0, 8)], [(1, 8, 16)], [(1, 16, 17), (2, 0, 3)], [(1, 17, 18)], [(1, 18, 19)]]
    assert [len(batch.slices[0].tokens) for batch in drive.runner.steps[2:5]] == [17, 18, 19]
    drive.run()
    assert drive.answers == {1: expected([*range(1, 18)], LONG), 2: expected([1, 2, 3], replace(LONG, max_tokens=1))}


@pytest.mark.parametrize(
    "more", [{"repetition_penalty": 1.1}, {"prompt_lookup_num_tokens": 2}, {"grammar": "start: /.*/"}]
)
def test_chunks_run_ahead_up_to_the_token_that_the_next_one_depends_on(more: dict[str, Any]) -> None:
    drive = Drive(ahead())
    drive.submit(1, list(range(1, 18)), replace(LONG, **more))
    drive.launch()
    followed = []
    for _ in range(4):
        followed.append(drive.scheduler.assume())
        if followed[-1]:
            drive.launch()
        drive.land()
        if not drive.flights:
            drive.launch()
    assert followed == [True, True, False, False]
    drive.run()
    assert drive.answers[1] == expected([*range(1, 18)], LONG)


@pytest.mark.parametrize(("n_pages", "runs_ahead"), [(3, False), (4, True)])
def test_a_step_runs_ahead_while_there_is_a_page_for_each_sequence_that_needs_one(
    n_pages: int, runs_ahead: bool
) -> None:
    """Two prompts fill a page each."""
    drive = Drive(ahead(pools=((None, n_pages),), max_model_len=8))
    for number in (1, 2):
        drive.submit(number, [number] * 4, replace(LONG, max_tokens=3))
    drive.launch()
    assert drive.scheduler.assume() == runs_ahead


@pytest.mark.parametrize("n", [2, 5])
def test_those_with_the_same_prompt_compute_none_of_its_pages_again(n: int) -> None:
    """The other choices share the pages of the first one while its step is in flight."""
    prompt = list(range(1, 62))
    computed = []
    for info in (make_info(), ahead()):
        drive = Drive(info, max_sequences=5, max_step_tokens=16)
        drive.scheduler.submit(Submit(0, prompt, LONG, n=n))
        drive.run()
        assert drive.answers == {choice: expected(prompt, LONG, choice) for choice in range(n)}
        computed.append(sum(step.n_tokens for step in drive.runner.steps))
    assert computed[1] <= computed[0]


def test_pages_of_a_sequence_that_has_ended_are_shared_while_its_step_is_in_flight() -> None:
    """The step computes them all the same."""
    drive = Drive(ahead(), max_step_tokens=16)
    prompt = list(range(1, 40))
    drive.submit(1, prompt, LONG)
    drive.launch()
    drive.submit(2, prompt, LONG)
    drive.scheduler.abort(1)
    assert drive.scheduler.assume()
    assert [(item.sequence_id, item.start) for item in drive.launch().slices] == [(2, 16)]
    drive.run()
    assert drive.answers[2] == expected(prompt, LONG)
