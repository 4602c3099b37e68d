"""Sequences that go on in another engine after some of their output, against the undisturbed run."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from model.batch import RunnerInfo
from model.sampling_params import RepetitionDetection, SamplingParams
from tests.engine.driving import Drive, expected
from tests.engine.loads import Request, loads
from tests.fakes import END, make_info, parrot

ENGINES = {
    "plain": make_info(),
    "ahead": replace(make_info(), runs_ahead=True),
    "pipeline": replace(make_info(), pipeline=3),
    "few pages": make_info(pools=((None, 14),), max_model_len=48),
    "window": make_info(pools=((9, 200), (None, 64))),
}
REPEATING = RepetitionDetection(4, 1, 3)
PARAMS = {
    "plain": SamplingParams(max_tokens=24, logprobs=1),
    "drafts": SamplingParams(max_tokens=24, prompt_lookup_num_tokens=5),
    "ends": SamplingParams(temperature=0.0, max_tokens=24, stop_token_ids=(END, 57)),
    "scored": SamplingParams(max_tokens=24, prompt_logprobs=0),
    "repeats": SamplingParams(max_tokens=24, repetition_detection=REPEATING),
    "repeats late": SamplingParams(max_tokens=24, min_tokens=20, repetition_detection=REPEATING),
}


def undisturbed(info: RunnerInfo, prompts: list[list[int]], params: SamplingParams) -> Drive:
    drive = Drive(info, max_step_tokens=7, say=parrot, order=Random(1))
    for number, prompt in enumerate(prompts):
        drive.submit(number, prompt, params, choice=number % 3)
    drive.run()
    return drive


@pytest.mark.each
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("info", ENGINES.values(), ids=ENGINES)
def test_the_rest_is_that_of_the_undisturbed_run(info: RunnerInfo, params: SamplingParams) -> None:
    """Each of eight sequences is cut at a place of its own, some before their first token."""
    rng = Random(5)
    prompts = [[rng.randrange(56, 59) for _ in range(rng.randint(2, 20))] for _ in range(8)]
    before = undisturbed(info, prompts, params)
    for turn in range(4):
        drive = Drive(info, max_step_tokens=7, say=parrot, order=Random(turn))
        given = {}
        for number, prompt in enumerate(prompts):
            output = given[number] = before.answers[number][: rng.randrange(len(before.answers[number]))]
            n_scored = len(prompt) - 1 if output and params.prompt_logprobs is not None else 0
            drive.submit(number, prompt, params, choice=number % 3, output=output, n_scored=n_scored)
        drive.run()
        assert {number: [*given[number], *drive.answers[number]] for number in given} == before.answers
        assert drive.finished == before.finished


def test_reasons_to_end_occur_in_these_runs() -> None:
    """Otherwise the test above would compare too little."""
    rng = Random(5)
    prompts = [[rng.randrange(56, 59) for _ in range(rng.randint(2, 20))] for _ in range(8)]
    ends = {
        name: {*undisturbed(ENGINES["plain"], prompts, params).finished.values()} for name, params in PARAMS.items()
    }
    assert ends["ends"] == {"stop"}
    assert "repetition" in ends["repeats"]
    assert ends["plain"] == {"length"}


@given(loads())
@settings(max_examples=60)
def test_any_load_goes_on_with_hardly_enough_pages(load: tuple[Drive, list[Request]]) -> None:
    """All sequences of a random load have half of their output."""
    drive, requests = load
    answers = [expected(request.prompt, request.params, say=drive.say) for request in requests]
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        output = answer[: len(answer) // 2]
        n_scored = len(request.prompt) - 1 if output and request.params.prompt_logprobs is not None else 0
        drive.submit(number, request.prompt, request.params, output=output, n_scored=n_scored)
    drive.run(4000)
    sound = [number for number, request in enumerate(requests) if not request.faulty]
    rest = [answers[number][len(answers[number]) // 2 :] for number in sound]
    assert [drive.answers[number] for number in sound] == rest


@pytest.mark.parametrize("n_scored", [0, 5, 11, 19])
def test_log_probabilities_of_the_prompt_come_once(n_scored: int) -> None:
    prompt = [56 + n % 3 for n in range(20)]
    params = PARAMS["scored"]
    whole = [
        score for update in undisturbed(make_info(), [prompt], params).updates[0] for score in update.prompt_logprobs
    ]
    assert len(whole) == 19
    drive = Drive(make_info(), max_step_tokens=7, say=parrot)
    output = expected(prompt, params, say=parrot)[:3] if n_scored == 19 else []
    drive.submit(0, prompt, params, output=output, n_scored=n_scored)
    drive.run()
    assert [score for update in drive.updates[0] for score in update.prompt_logprobs] == whole[n_scored:]


def test_it_waits_as_one_that_was_preempted() -> None:
    """Nothing is charged to its tenant again, and its prompt is not looked up again in the counts of the cache."""
    drive = Drive(make_info(), max_sequences=1)
    params = SamplingParams(max_tokens=6)
    output = expected([1, 2, 3], params)[:2]
    for number in range(2):
        drive.submit(number, [1, 2, 3], params, output=output)
    drive.step()
    states = [item.state for item in drive.scheduler.view({}).whole(()).sequences]
    assert states[1] == "preempted"
    drive.run()
    assert drive.scheduler.stats().queried_tokens == 0
    assert drive.answers == dict.fromkeys(range(2), expected([1, 2, 3], params)[2:])
