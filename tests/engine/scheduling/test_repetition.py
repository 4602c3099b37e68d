"""The end of outputs that repeat themselves, against a comparison of whole lists."""

from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.batch import RunnerInfo
from model.errors import ParameterError
from model.sampling_params import RepetitionDetection, SamplingParams
from service.engine.messages import Submit
from service.engine.scheduling.repetition import Repetition
from tests.engine.driving import Drive, expected
from tests.fakes import make_info, parrot


def repeats(output: list[int], wanted: RepetitionDetection) -> bool:
    """Whether the output ends with enough copies, by the definition."""
    sizes = range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1)
    lengths = [(size, size * wanted.min_count) for size in sizes if size * wanted.min_count <= len(output)]
    return any(output[-length:] == output[-size:] * wanted.min_count for size, length in lengths)


WANTED = st.builds(
    lambda least, more, count: RepetitionDetection(least + more, least, count),
    st.integers(0, 4),
    st.integers(1, 6),
    st.integers(2, 4),
)


@given(st.lists(st.integers(0, 2), max_size=60), WANTED)
def test_each_token_is_judged_as_by_a_comparison_of_lists(output: list[int], wanted: RepetitionDetection) -> None:
    repetition = Repetition(wanted)
    found = [repetition.observe(token) for token in output]
    assert found == [repeats(output[: n + 1], wanted) for n in range(len(output))]


ENGINES = {
    "plain": make_info(),
    "ahead": replace(make_info(), runs_ahead=True),
    "pipeline": replace(make_info(), pipeline=3),
    "few pages": make_info(pools=((None, 24),), max_model_len=64),
    "window": make_info(page_size=4, pools=((9, 200),)),
}


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("info", ENGINES.values(), ids=ENGINES)
def test_an_answer_ends_at_the_same_token_however_it_is_computed(info: RunnerInfo, drafts: int) -> None:
    wanted = RepetitionDetection(4, 1, 3)
    params = SamplingParams(max_tokens=40, repetition_detection=wanted)
    rng, answers = Random(3), {}
    drive = Drive(info, max_sequences=4, max_step_tokens=7, say=parrot, order=Random(4))
    for number in range(0, 24, 2):
        prompt = [rng.randrange(56, 59) for _ in range(rng.randint(2, 9))]
        for choice in range(2):
            whole = expected(prompt, params, choice, parrot)
            stop = next((n for n in range(1, 41) if repeats(whole[:n], wanted)), None)
            answers[number + choice] = (whole[:stop], "repetition" if stop and stop < 40 else "length")
        order = replace(params, prompt_lookup_num_tokens=drafts)
        drive.scheduler.submit(Submit(number, prompt, order, n=2))
    drive.run()
    assert {n: (drive.answers[n], drive.finished[n]) for n in answers} == answers
    assert {reason for _, reason in answers.values()} == {"repetition", "length"}


@pytest.mark.parametrize(
    ("more", "n_tokens", "finish"),
    [
        ({}, 6, "repetition"),
        ({"min_tokens": 9}, 9, "repetition"),
        ({"max_tokens": 6}, 6, "length"),
        ({"stop_token_ids": (57,)}, 1, "stop"),
        ({"repetition_detection": None}, 12, "length"),
        ({"repetition_detection": RepetitionDetection(6, 4, 3)}, 12, "length"),
    ],
)
def test_other_ends_come_first(more: dict[str, object], n_tokens: int, finish: str) -> None:
    params = {"max_tokens": 12, "repetition_detection": RepetitionDetection(4, 2, 3), **more}
    drive = Drive(make_info(), say=lambda tokens, choice: 57)
    drive.submit(1, [57] * 5, SamplingParams(**params))  # type: ignore[arg-type]
    drive.run()
    assert (len(drive.answers[1]), drive.finished[1]) == (n_tokens, finish)


@pytest.mark.parametrize(
    ("sizes", "field", "limits"),
    [
        ((513, 1, 2), "max_pattern_size", "between 0 and 512, got 513"),
        ((4, 5, 2), "min_pattern_size", "between 0 and 4, got 5"),
        ((0, 1, 0), "min_pattern_size", "between 0 and 0, got 1"),
        ((4, 1, 1), "min_count", "between 2 and 1000, got 1"),
        ((4, 1, 1001), "min_count", "between 2 and 1000, got 1001"),
        ((-1, 0, 2), "max_pattern_size", "between 0 and 512, got -1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, int, int], field: str, limits: str) -> None:
    with pytest.raises(ParameterError, match=f"repetition_detection.{field} must be {limits}"):
        RepetitionDetection(*sizes)
    assert asdict(RepetitionDetection()) == dict.fromkeys(("max_pattern_size", "min_pattern_size", "min_count"), 0)
