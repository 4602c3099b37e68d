"""What steps cost, and the prompt tokens that fit beside decoding, against arithmetic on paper."""

from dataclasses import replace
from itertools import cycle, islice
from random import Random

import pytest

from model.sampling_params import SamplingParams
from service.engine.budget import LEAST_TOKENS, SAFE, Cost, Pace, PromptBudget, StepCost
from tests.engine.driving import Drive, expected
from tests.fakes import make_info

TRUE = Cost(0.004, 0.0005, 0.0002)
SHAPES = ((0, 512), (16, 0), (4, 0), (16, 50), (1, 0), (30, 120))
ANSWER = SamplingParams(temperature=0.0, max_tokens=60)


def learnt(*costs: Cost, each: int = 300) -> StepCost:
    """After steps of these costs, one after the other."""
    found = StepCost()
    for cost in costs:
        for rows, tokens in islice(cycle(SHAPES), each):
            found.note(rows, tokens, 0.0, cost.seconds(rows, tokens))
    return found


def test_the_cost_of_rows_and_tokens_is_learnt_and_learnt_again() -> None:
    assert StepCost().now == Cost(0.0, 0.0, 0.0)
    slower = Cost(0.012, 0.0008, 0.0005)
    for found, cost in ((learnt(TRUE), TRUE), (learnt(TRUE, slower), slower)):
        for rows, tokens in SHAPES:
            assert found.now.seconds(rows, tokens) == pytest.approx(cost.seconds(rows, tokens), rel=0.05)


@pytest.mark.parametrize(("cost", "rows"), [(TRUE, 8), (Cost(0.002, 0.004), 0.5), (Cost(), 12)])
def test_a_step_counts_as_rows(cost: Cost, rows: float) -> None:
    assert cost.fixed_rows == pytest.approx(rows)


def test_steps_that_only_decode_say_nothing_about_prompts() -> None:
    found, random = learnt(TRUE), Random(0)
    for _ in range(10_000):
        found.note(16, 0, 0.0, TRUE.seconds(16, 0) * random.gauss(1, 0.05))
    assert found.now.token == pytest.approx(TRUE.token, rel=0.1)
    assert found.now.seconds(16, 0) == pytest.approx(TRUE.seconds(16, 0), rel=0.03)


def test_a_machine_that_slows_down_makes_all_dearer() -> None:
    """Prompts are in every step, so that none of them tells what decoding alone costs."""
    found = learnt(TRUE)
    for _ in range(30):
        found.note(8, 30, 0.0, 2 * TRUE.seconds(8, 30))
    assert found.now.seconds(8, 0) == pytest.approx(2 * TRUE.seconds(8, 0), rel=0.2)
    assert found.now.token == pytest.approx(2 * TRUE.token, rel=0.2)


def test_tokens_of_a_deep_prompt_cost_more() -> None:
    """At position 2000 each of them costs twice what the first does."""
    deep, found = TRUE._replace(pair=TRUE.token / 2000), StepCost()
    for start in [*range(0, 2000, 50)] * 4:
        counts = 16, 50, 50 * (start + 25.0)
        found.note(*counts, deep.seconds(*counts))
        found.note(16, 0, 0.0, deep.seconds(16, 0))
    for depth in (0, 1000, 2000):
        counts = 16, 50, 50.0 * depth
        assert found.now.seconds(*counts) == pytest.approx(deep.seconds(*counts), rel=0.05)


def test_a_step_that_something_held_up_counts_little() -> None:
    """It took 500 times as long and counts as twice, once."""
    found = learnt(TRUE)
    found.note(16, 0, 0.0, 6.0)
    assert TRUE.seconds(16, 0) < found.now.seconds(16, 0) < 1.2 * TRUE.seconds(16, 0)


@pytest.mark.parametrize("absurd", [[1e9], [TRUE.seconds(16, 50)] * 100 + [0.0] * 2000, [1e5, 1e-7] * 500])
def test_steps_of_absurd_lengths_are_forgotten(absurd: list[float]) -> None:
    """A clock that stands still or jumps leaves no negative cost, and nothing that later steps cannot correct."""
    found = StepCost()
    for number, seconds in enumerate(absurd):
        found.note(4, number % 3 * 20, number % 3 * 2e4, seconds)
        assert min(found.now) > 0
    for _ in range(10):
        for rows, tokens in SHAPES * 10:
            found.note(rows, tokens, 0.0, TRUE.seconds(rows, tokens))
            assert min(found.now) > 0
    for rows, tokens in SHAPES[1:]:
        assert found.now.seconds(rows, tokens) == pytest.approx(TRUE.seconds(rows, tokens), rel=0.1)


def test_the_parts_are_told_apart_although_nothing_decodes_alone() -> None:
    """Sequences join while prompts fill the rest of each step: rows and prompt tokens vary together."""
    found = StepCost()
    found.note(0, 512, 0.0, TRUE.seconds(0, 512))
    for rows in range(4, 24):
        tokens = TRUE.prompt_tokens(0.02, rows, 24) or 0
        found.note(rows, tokens, 0.0, TRUE.seconds(rows, tokens))
    assert found.now.seconds(24, 0) == pytest.approx(TRUE.seconds(24, 0), rel=0.2)
    assert found.now.token == pytest.approx(TRUE.token, rel=0.2)


@pytest.mark.parametrize(
    ("rows", "sequences", "target", "tokens"),
    [
        (16, 16, 0.02, 45),  # decoding takes 12 ms: 9 ms more are more than the 8 ms that are left
        (16, 24, 0.02, 80),  # 1.75 times 16 ms, which decoding takes once all decode, without 12 ms
        (2, 3, 0.02, 75),  # 20 - 5 ms
        (1, 1, 0.001, 16),  # 3.4 ms, three quarters of decoding
        (0, 3, 0.02, None),  # nobody waits for the next token
        (16, 16, 0.0, None),
    ],
)
def test_prompts_get_what_is_left_of_the_target_or_of_stretched_decoding(
    rows: int, sequences: int, target: float, tokens: int | None
) -> None:
    assert TRUE.prompt_tokens(target, rows, sequences) == tokens


@pytest.mark.parametrize("depth", [0, 500, 2000])
def test_a_deep_prompt_gets_fewer_tokens(depth: int) -> None:
    """One token more would take longer than the 9 ms that are left."""
    deep = TRUE._replace(pair=TRUE.token / 2000)
    tokens = deep.prompt_tokens(0.02, 16, 16, depth) or 0
    seconds = [n * deep.token + sum(range(depth, depth + n)) * deep.pair for n in (tokens, tokens + 2)]
    assert seconds[0] <= 0.009 < seconds[1]


def test_before_the_first_prompt_nothing_is_limited() -> None:
    assert Cost(0.004, 0.0005, 0.0).prompt_tokens(0.02, 16, 16) is None


def chunked(target: float, cost: Cost = TRUE) -> list[tuple[int, int]]:
    """Two sequences decode when a prompt of 1000 tokens comes. Returns the decoding rows and prompt tokens of the
    steps from then on."""
    info = make_info(page_size=16, pools=((None, 100),), max_model_len=1100)
    prompts = PromptBudget(target)
    engine = Drive(info, max_sequences=4, max_step_tokens=256, prompts=prompts)
    for number in (1, 2):
        engine.submit(number, [number] * 10, ANSWER)
    steps = list[tuple[int, int]]()
    while engine.scheduler.has_work:
        batch = engine.step()
        counts = batch.n_tokens - batch.n_prompt, batch.n_prompt
        prompts.note(*counts, batch.n_pairs, cost.seconds(*counts))
        steps.append(counts)
        if len(steps) == 8:
            engine.submit(3, [3] * 1000, ANSWER)
    engine.check_idle()
    assert all(engine.answers[number] == expected([number] * n, ANSWER) for number, n in ((1, 10), (2, 10), (3, 1000)))
    return steps[8:]


def test_a_chunk_beside_decoding_meets_the_target() -> None:
    """Two rows take 5 ms, so 15 ms are for prompts. The estimate is wrong by half at first, from the
    short prompts, and nearly right after five."""
    steps = chunked(0.02)
    chunks = [(rows, tokens) for rows, tokens in steps if tokens]
    assert all(rows == 2 for rows, _ in chunks)
    assert sum(tokens for _, tokens in chunks) == 1000
    for rows, tokens in chunks[5:-1]:
        assert TRUE.seconds(rows, tokens) == pytest.approx(0.02, rel=0.1)


def test_a_target_out_of_reach_leaves_prompts_the_least_chunk() -> None:
    """Prompts would get as long as decoding, 3 ms, which one or two tokens take. The estimate is right after five."""
    chunks = [tokens for _, tokens in chunked(0.001, Cost(0.0, 0.001, 0.002)) if tokens]
    assert sum(chunks) == 1000
    assert chunks[5:-1] == [LEAST_TOKENS] * (len(chunks) - 6)


def test_the_stages_of_a_pipeline_share_the_budget() -> None:
    """Both decoding sequences and the 75 prompt tokens that fit beside them are for two steps in flight."""
    prompts = PromptBudget(0.02)
    for rows, tokens in islice(cycle(SHAPES), 300):
        prompts.note(rows, tokens, 0.0, TRUE.seconds(rows, tokens))
    assert prompts.tokens(2, 3, 0) == pytest.approx(75, abs=2)
    info = make_info(page_size=16, pools=((None, 100),), max_model_len=1100)
    engine = Drive(replace(info, pipeline=2), max_step_tokens=256, prompts=prompts)
    for number in (1, 2):
        engine.submit(number, [number], ANSWER)
    for _ in range(4):
        engine.step()
    engine.submit(3, [3] * 1000, ANSWER)
    for _ in range(4):
        assert engine.step().n_tokens <= (2 + 77) // 2


def seconds_of_steps(cost: Cost, lengths: list[int], deadline: float = 60.0, max_sequences: int = 4) -> list[float]:
    """How long the steps take in which prompts of these lengths are served, on a machine with this cost.

    The default target between two tokens holds, the answers are checked.
    """
    info = make_info(page_size=16, pools=((None, 4000),), max_model_len=20_000)
    prompts = PromptBudget(0.02, deadline)
    engine = Drive(info, max_sequences=max_sequences, max_step_tokens=512, prompts=prompts)
    answer = SamplingParams(max_tokens=4)
    wanted = [[number + 1] * length for number, length in enumerate(lengths)]
    for number, prompt in enumerate(wanted):
        engine.submit(number, prompt, answer)
    took = list[float]()
    while engine.scheduler.has_work:
        batch = engine.step()
        rows = batch.n_tokens - batch.n_prompt
        took.append(cost.seconds(rows, batch.n_prompt, batch.n_pairs))
        prompts.note(rows, batch.n_prompt, batch.n_pairs, took[-1])
        prompts.pace.note(batch.n_tokens, batch.n_pairs, took[-1])
    engine.check_idle()
    assert all(engine.answers[number] == expected(prompt, answer) for number, prompt in enumerate(wanted))
    return took


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 4])
def test_no_running_sequence_stands_still_when_the_machine_becomes_slow(pipeline: int, rows: int) -> None:
    """A prompt is half computed when a token begins to take longer than a step may."""
    info = replace(make_info(page_size=16, pools=((None, 100),), max_model_len=1100), pipeline=pipeline)
    prompts = PromptBudget(0.0, 1.0)
    engine = Drive(info, max_sequences=8, max_step_tokens=64, prompts=prompts)
    prompts.pace = Pace()  # without a limit
    for number in range(rows):
        engine.submit(number, [number], ANSWER)
    for _ in range(4 * pipeline):
        engine.step()
    engine.submit(9, [9] * 300, ANSWER)
    engine.step()
    prompts.pace = Pace(0.001)
    for _ in range(pipeline):
        engine.step()  # those in flight land, which were planned before
    waiting = set(engine.scheduler.due)
    assert waiting == {*range(rows), 9}
    for _ in range(4 * pipeline):
        engine.step()
        waiting.difference_update(engine.scheduler.advanced)
    assert not waiting


@pytest.mark.parametrize(
    "cost",
    [
        Cost(0.1, 0.5, 0.5),  # two tokens a second
        Cost(5.0, 0.1, 0.1),  # reading the weights takes longest
        Cost(0.0, 0.5, 0.5, 0.5 / 512),  # deep prompts cost most
    ],
)
def test_a_step_of_a_slow_machine_ends_well_before_it_counts_as_hung(cost: Cost) -> None:
    took = seconds_of_steps(cost, [600, 1500, 20, 300])
    assert max(took) < 60 / 2


def test_a_machine_that_cannot_serve_all_at_once_admits_fewer_sequences() -> None:
    """Each row takes 2 s: 64 together would take two minutes. The first step is planned without a measurement."""
    first, *later = seconds_of_steps(Cost(0.0, 2.0, 2.0), [3] * 64, max_sequences=64)
    assert first < 60
    assert max(later) <= 60 / SAFE


def test_a_fast_machine_soon_computes_full_chunks() -> None:
    """A measurement raises the limit fourfold: 15, 60 and 240 tokens, then 512."""
    took = seconds_of_steps(TRUE, [2000])
    assert took[:4] == pytest.approx([TRUE.seconds(0, n) for n in (15, 60, 240, 512)], rel=0.02)


def test_a_step_whose_result_was_there_before_does_not_lift_the_limit() -> None:
    pace = Pace(60.0)
    pace.note(30, 0.0, 15.0)
    assert pace.tokens(0) == pytest.approx(30)
    assert pace.tokens(8192) == pytest.approx(15)
    pace.note(30, 0.0, 0.0)
    assert pace.tokens(0) == pytest.approx(30 * SAFE)
