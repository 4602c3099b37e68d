"""Sequences with one beginning compute its pages once, also in one step. Nobody keeps a page that was not computed."""

from dataclasses import replace

import pytest

from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from tests.engine.driving import Drive, expected
from tests.fakes import FAULTY, make_info

PARAMS = SamplingParams(max_tokens=4)
PAGE = 16


def drive_of(depth: int = 1, *, ahead: bool = False, max_sequences: int = 16, n_pages: int = 400) -> Drive:
    info = make_info(page_size=PAGE, pools=((None, n_pages),), max_model_len=2048)
    info = replace(info, pipeline=depth, runs_ahead=ahead, max_sequences=max_sequences, copies_pages=True)
    return Drive(info, max_sequences=max_sequences, max_step_tokens=512)


def computed(drive: Drive) -> int:
    """Tokens of prompts: each answer takes a token less, for the last one is not computed."""
    return sum(batch.n_tokens for batch in drive.runner.steps) - len(drive.finished) * (PARAMS.max_tokens - 1)


KINDS = pytest.mark.parametrize(("depth", "ahead"), [(1, False), (1, True), (3, False)])


@KINDS
@pytest.mark.parametrize(("n", "length"), [(4, 480), (8, 200), (2, 17), (3, 16)])
def test_choices_compute_their_prompt_once(n: int, length: int, depth: int, ahead: bool) -> None:
    prompt = [1 + k % 50 for k in range(length)]
    drive = drive_of(depth, ahead=ahead)
    drive.scheduler.submit(Submit(0, prompt, PARAMS, n=n))
    drive.run()
    assert drive.answers == {choice: expected(prompt, PARAMS, choice) for choice in range(n)}
    assert computed(drive) <= length + (n - 1) * PAGE


@KINDS
@pytest.mark.parametrize(("n", "length", "own"), [(16, 1000, 0), (16, 300, 0), (16, 300, 40)])
def test_a_burst_computes_its_system_prompt_once(n: int, length: int, own: int, depth: int, ahead: bool) -> None:
    prompts = [[1 + k % 50 for k in range(length)] + [60 + number] * own for number in range(n)]
    drive = drive_of(depth, ahead=ahead)
    for number, prompt in enumerate(prompts):
        drive.submit(number, prompt, PARAMS)
    drive.run()
    assert [drive.answers[number] for number in range(n)] == [expected(prompt, PARAMS) for prompt in prompts]
    assert computed(drive) <= length + n * own + (n - 1) * PAGE


@KINDS
def test_who_shares_a_page_of_a_faulty_slice_begins_again(depth: int, ahead: bool) -> None:
    prompt = [1 + k % 50 for k in range(100)]
    drive = drive_of(depth, ahead=ahead)
    for number, end in enumerate([FAULTY, 1, 2, FAULTY]):
        drive.submit(number, [*prompt, end], PARAMS)
    drive.run()
    assert [drive.finished[number] for number in range(4)] == ["error", "length", "length", "error"]
    assert [drive.answers[number] for number in (1, 2)] == [expected([*prompt, end], PARAMS) for end in (1, 2)]
    assert drive.n_again >= 3  # the first owner is faulty, and so is nobody after it but the last
    drive.submit(4, [*prompt, 3], PARAMS)
    drive.run()
    assert drive.answers[4] == expected([*prompt, 3], PARAMS)


@pytest.mark.parametrize(("depth", "ahead"), [(1, True), (3, False)])
def test_no_part_of_a_page_in_flight_is_copied(depth: int, ahead: bool) -> None:
    """Its slice may have a fault, and a copy would not be known."""
    drive = drive_of(depth, ahead=ahead)
    beginning = [*range(1, 13)]
    drive.submit(0, [*beginning, FAULTY, 20, 21, 22, 23], PARAMS)
    drive.launch()
    drive.submit(1, [*beginning, 60, 61], PARAMS)
    assert not ahead or drive.scheduler.assume()
    assert not drive.launch().copies
    drive.run()
    assert drive.answers[1] == expected([*beginning, 60, 61], PARAMS)


@KINDS
def test_a_sequence_that_has_ended_leaves_no_page_behind_a_faulty_one(depth: int, ahead: bool) -> None:
    drive = drive_of(depth, ahead=ahead)
    beginning, own = [*range(1, 33)], [*range(60, 80)]
    drive.submit(0, [*beginning, FAULTY], PARAMS)
    drive.submit(1, [*beginning, *own], PARAMS)
    assert [item.start for item in drive.launch().slices] == [0, 32]
    drive.scheduler.abort(1)
    drive.land()
    for number in (2, 3):
        drive.submit(number, [*beginning, *own, 99], PARAMS)
        drive.run()
        assert drive.answers[number] == expected([*beginning, *own, 99], PARAMS)


def test_a_plan_that_is_taken_back_takes_no_name_that_it_has_not_given() -> None:
    """The windowed pool has lost the prompt's first page, and the new request names another. The full pool has it."""
    info = replace(make_info(page_size=4, pools=((None, 60), (4, 8)), max_model_len=120), max_sequences=3)
    drive = Drive(info, max_sequences=3, max_step_tokens=24)
    prompt, params = [*range(1, 10)], SamplingParams(max_tokens=80)
    drive.submit(0, prompt, params)
    for _ in range(45):
        drive.step()
    drive.submit(1, prompt, params)
    batch = drive.scheduler.plan()
    assert [item.sequence_id for item in batch.slices] == [0, 1]
    drive.scheduler.retract(batch.n_tokens, {})
    assert drive.scheduler.take_returned() == []
    drive.run()
    assert drive.answers == {number: expected(prompt, params) for number in range(2)}


def test_who_shares_a_page_of_a_plan_that_is_taken_back_begins_again() -> None:
    prompt = [1 + k % 50 for k in range(100)]
    drive = drive_of()
    for number in range(3):
        drive.submit(number, [*prompt, 60 + number], PARAMS)
    batch = drive.scheduler.plan()
    assert [item.start for item in batch.slices] == [0, 96, 96]
    assert drive.scheduler.retract(batch.n_tokens, {}) == []
    assert [update.id for update in drive.scheduler.take_returned()] == [1, 2]
    assert [item.sequence_id for item in drive.launch().slices] == [0]


def test_nobody_keeps_a_page_of_a_failed_step() -> None:
    prompt = [1 + k % 50 for k in range(512)]
    drive = drive_of(3)
    drive.submit(0, [*prompt, 60], PARAMS)
    while drive.scheduler.plan():
        pass
    drive.submit(1, [*prompt[:160], 61], PARAMS)
    while drive.scheduler.plan():
        pass
    failed = {update.id for update in drive.scheduler.fail_steps()}
    again = {update.id for update in drive.scheduler.take_returned()}
    assert failed | again == {0, 1}
    drive.scheduler.check_idle()
    drive.submit(2, [*prompt, 62], PARAMS)
    drive.run()
    assert drive.admitted(2).cached == 0
    assert drive.answers[2] == expected([*prompt, 62], PARAMS)


def test_a_prompt_that_finds_no_free_page_is_not_shared_in_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = drive_of(n_pages=130, max_sequences=3)
    prompt = [1 + k % 50 for k in range(1600)]
    drive.submit(0, prompt, replace(PARAMS, max_tokens=400))
    drive.submit(1, [70] * 40, replace(PARAMS, max_tokens=400))
    while drive.scheduler.pools[0].available > 1:
        drive.step()
    drive.submit(2, [*prompt, 60], PARAMS)
    monkeypatch.setattr("service.engine.scheduling.scheduler.reuse", lambda *_: pytest.fail("it is shared"))
    for _ in range(3):
        drive.step()
    monkeypatch.undo()
    drive.run(4000)
    assert drive.answers[2] == expected([*prompt, 60], PARAMS)
