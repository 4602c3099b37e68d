"""Plans, chunks, reuse, preemption and the laws of DESIGN section 3, on a model that is arithmetic."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.sampling_params import SamplingParams
from tests.engine.driving import Drive, expected
from tests.fakes import END, make_info

PARAMS = SamplingParams(max_tokens=5)


def test_prompt_is_computed_in_chunks_and_decoding_goes_first() -> None:
    drive = Drive(make_info(), max_step_tokens=4)
    drive.submit(1, list(range(1, 12)), PARAMS)
    assert [item.stop - item.start for item in drive.step().slices] == [4]
    assert [item.stop - item.start for item in drive.step().slices] == [4]
    drive.submit(2, [1, 2], PARAMS)
    batch = drive.step()
    assert [(item.sequence_id, item.start, item.stop) for item in batch.slices] == [(1, 8, 11), (2, 0, 1)]
    batch = drive.step()  # 1 decodes, 2 lacks one token as well: nothing tells them apart
    assert [(item.sequence_id, item.stop - item.start) for item in batch.slices] == [(1, 1), (2, 1)]
    drive.run()
    assert drive.answers[1] == expected(list(range(1, 12)), PARAMS)
    assert drive.finished == {1: "length", 2: "length"}


def test_decoding_goes_before_an_older_prompt() -> None:
    drive = Drive(make_info(), max_step_tokens=4)
    drive.submit(1, list(range(1, 20)), PARAMS)
    drive.submit(2, [5], PARAMS)
    drive.scheduler.abort(1)
    drive.submit(3, list(range(1, 20)), PARAMS)
    drive.step()
    batch = drive.step()
    assert [(item.sequence_id, item.stop - item.start) for item in batch.slices] == [(2, 1), (3, 3)]


def test_a_second_request_starts_from_the_first_ones_pages() -> None:
    drive = Drive(make_info(page_size=4), max_step_tokens=64)
    prompt = list(range(1, 18))
    drive.submit(1, prompt, PARAMS)
    drive.run()
    drive.submit(2, prompt, PARAMS)
    batch = drive.step()
    assert (batch.slices[0].start, batch.slices[0].stop) == (16, 17)
    drive.run()
    assert drive.answers[2] == drive.answers[1] == expected(prompt, PARAMS)
    assert drive.updates[2][0].cached == 16
    assert drive.scheduler.stats().hit_tokens == 16


def test_at_least_one_prompt_token_is_computed() -> None:
    drive = Drive(make_info(page_size=4), max_step_tokens=64)
    for sequence_id in (1, 2):
        drive.submit(sequence_id, list(range(1, 17)), PARAMS)
        drive.run()
    assert drive.updates[2][0].cached == 12


def test_prompt_logprobs_bypass_reuse_and_come_once() -> None:
    drive = Drive(make_info(page_size=4), max_step_tokens=4)
    params = SamplingParams(max_tokens=2, prompt_logprobs=0)
    prompt = list(range(1, 12))
    for sequence_id in (1, 2):
        drive.submit(sequence_id, prompt, params)
        drive.run()
    for sequence_id in (1, 2):
        scored = [item.token for update in drive.updates[sequence_id] for item in update.prompt_logprobs]
        assert scored == prompt[1:]
    assert drive.updates[2][0].cached == 0


def test_scoring_alone_draws_nothing() -> None:
    drive = Drive(make_info())
    drive.submit(1, [1, 2, 3], SamplingParams(max_tokens=0, prompt_logprobs=1))
    drive.run()
    assert drive.answers[1] == []
    assert drive.finished[1] == "length"


def test_the_youngest_is_preempted_and_answers_the_same() -> None:
    drive = Drive(make_info(pools=((None, 8),), max_model_len=32), max_step_tokens=32)
    params = SamplingParams(max_tokens=16)
    for sequence_id in (1, 2, 3):
        drive.submit(sequence_id, [sequence_id] * 6, params)
    drive.run()
    assert drive.scheduler.stats().preemptions > 0
    assert [update.finish for update in drive.updates[1]][-1] == "length"
    for sequence_id in (1, 2, 3):
        assert drive.answers[sequence_id] == expected([sequence_id] * 6, params)


def test_a_window_keeps_its_pages_bounded_however_long_the_prompt() -> None:
    drive = Drive(make_info(pools=((8, 6),), max_model_len=4096), max_step_tokens=4)
    prompt = [1 + n % 200 for n in range(400)]
    drive.submit(1, prompt, PARAMS)
    drive.run()  # Drive checks ceil((window - 1 + chunk) / page_size) + 1 at every step
    assert drive.answers[1] == expected(prompt, PARAMS)


def test_abort_releases_pages_wherever_the_sequence_is() -> None:
    drive = Drive(make_info(), max_sequences=1)
    for sequence_id in (1, 2):
        drive.submit(sequence_id, [1, 2, 3], PARAMS)
    drive.step()
    for sequence_id in (1, 2, 99):
        drive.scheduler.abort(sequence_id)
    assert not drive.scheduler.has_work
    drive.scheduler.check_idle()


def test_a_failed_step_ends_only_its_own_sequences() -> None:
    drive = Drive(make_info(), max_sequences=1)
    for sequence_id in (1, 2):
        drive.submit(sequence_id, [1, 2, 3], PARAMS)
    drive.scheduler.plan()
    assert [(update.id, update.finish) for update in drive.scheduler.fail_step()] == [(1, "error")]
    drive.run()
    assert drive.answers[2] == expected([1, 2, 3], PARAMS)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 4), ([1] * 100, 29)])
def test_what_could_never_finish_is_refused(prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.128"):
        Drive(make_info()).submit(1, prompt, SamplingParams(max_tokens=max_tokens))


def test_choices_differ_and_a_stop_token_ends_one() -> None:
    drive = Drive(make_info(), max_step_tokens=16)
    params = SamplingParams(max_tokens=40, temperature=0.0, stop_token_ids=(END,))
    for choice in range(3):
        drive.submit(choice, [7, 8, 9], params, choice)
    drive.run()
    for choice in range(3):
        assert drive.answers[choice] == expected([7, 8, 9], params, choice)
        assert (drive.finished[choice] == "stop") == (drive.answers[choice][-1] == END)


@dataclass
class Request:
    prompt: list[int]
    params: SamplingParams
    arrival: int
    aborted_at: int | None


windows = st.sampled_from([None, 1, 2, 3, 5, 9])
request_fields = {
    "prompt": st.lists(st.integers(1, 3), min_size=1, max_size=30),
    "params": st.builds(SamplingParams, max_tokens=st.integers(0, 12), prompt_logprobs=st.sampled_from([None, 0])),
    "arrival": st.integers(0, 6),
    "aborted_at": st.none() | st.integers(7, 30),
}


@st.composite
def loads(draw: st.DrawFn) -> tuple[Drive, list[Request]]:
    """An engine with hardly enough pages, and requests that share beginnings."""
    page_size = draw(st.sampled_from([1, 3, 4, 8]))
    max_step_tokens = draw(st.integers(3, 20))
    spare = draw(st.integers(0, 12))
    longest = 42
    full = -(-longest // page_size)
    pools = []
    for window in draw(st.lists(windows, min_size=1, max_size=3, unique=True)):
        most = full if window is None else min(full, -(-(window - 1 + max_step_tokens) // page_size) + 1)
        pools.append((window, most + spare))
    info = make_info(page_size=page_size, pools=pools, max_model_len=longest)
    drive = Drive(info, max_sequences=3, max_step_tokens=max_step_tokens)
    return drive, draw(st.lists(st.builds(Request, **request_fields), min_size=1, max_size=10))


def play(drive: Drive, requests: list[Request], limit: int = 1200) -> None:
    """Submit and abort each request at its time; step until nothing is left."""
    for now in range(limit):
        for index, request in enumerate(requests):
            if now == request.arrival:
                drive.submit(index, request.prompt, request.params)
            if now == request.aborted_at:
                drive.scheduler.abort(index)
        if drive.scheduler.has_work:
            assert drive.step().slices
        elif now > 60:
            drive.scheduler.check_idle()
            return
    raise AssertionError("the engine does not come to rest")


@settings(max_examples=200, deadline=None)
@given(loads())
def test_random_loads_keep_the_laws(load: tuple[Drive, list[Request]]) -> None:
    """Arrivals, aborts and too few pages: every answer is the undisturbed one, nothing is held at the end."""
    drive, requests = load
    play(drive, requests)
    for index, request in enumerate(requests):
        answer = expected(request.prompt, request.params)
        scored = [item.token for update in drive.updates[index] for item in update.prompt_logprobs]
        wanted = [] if request.params.prompt_logprobs is None else request.prompt[1:]
        if request.aborted_at is None:
            assert (drive.answers[index], scored) == (answer, wanted)
        else:
            assert drive.answers[index] == answer[: len(drive.answers[index])]
            assert scored == wanted[: len(scored)]
