"""What steps cost, and the prompt tokens that fit beside decoding, against arithmetic on paper."""

from dataclasses import replace
from itertools import cycle, islice
from math import inf
from random import Random

import pytest

from benchmarks.chunks import Cost
from model.sampling_params import SamplingParams
from service.engine.scheduling.budget import DOUBLE_DEPTH, LEAST_TOKENS, SAFE, PromptBudget, StepCost, StepPace
from tests.engine.driving import Drive, expected
from tests.engine.images import FORMAT, ImageDrive, Picture, info_with_images, prompt_of
from tests.fakes import make_info

TRUE = Cost(0.004, 0.0005, 0.0002)
SHAPES = ((0, 512), (16, 0), (4, 0), (16, 50), (1, 0), (30, 120))
ANSWER = SamplingParams(temperature=0.0, max_tokens=60)
LARGEST = inf
"""Nothing limits the prompt tokens of a step."""


def learnt(*costs: Cost, each: int = 300) -> StepCost:
    """After steps of these costs, one after the other."""
    found = StepCost()
    for cost in costs:
        for rows, tokens in islice(cycle(SHAPES), each):
            found.note(rows, tokens, 0.0, cost.seconds(rows, tokens))
    return found


def seconds(found: StepCost, rows: int, tokens: int) -> float:
    return found.decode(rows) + tokens * found.token


def test_the_cost_of_rows_and_tokens_is_learnt_and_learnt_again() -> None:
    """A machine that becomes slower is followed, and one that becomes faster."""
    slower, faster = Cost(0.012, 0.0008, 0.0005), Cost(0.002, 0.0003, 0.0001)
    for costs in ((TRUE,), (TRUE, slower), (TRUE, faster)):
        found = learnt(*costs)
        for rows, tokens in SHAPES[1:]:
            assert seconds(found, rows, tokens) == pytest.approx(costs[-1].seconds(rows, tokens), rel=0.05)


def test_before_the_first_step_nothing_is_known() -> None:
    found = StepCost()
    assert (found.token, found.decode(8), found.fixed_rows) == (0.0, 0.0, 12)


@pytest.mark.parametrize(("cost", "rows"), [(TRUE, 8), (Cost(0.002, 0.004, 0.0), 0.5), (Cost(0.012, 0.001, 0.0), 12)])
def test_a_step_counts_as_rows(cost: Cost, rows: float) -> None:
    found = StepCost()
    for n_rows in islice(cycle((2, 24, 8)), 200):
        found.note(n_rows, 0, 0.0, cost.seconds(n_rows, 0))
    assert found.fixed_rows == pytest.approx(rows, rel=0.1, abs=0.2)


def test_rows_that_do_not_vary_cost_what_is_typical() -> None:
    """12 rows add as much to a step as it takes without them."""
    found, random = StepCost(), Random(0)
    for _ in range(200):
        found.note(12, 0, 0.0, 0.01 * random.gauss(1, 0.05))
    assert found.decode(12) == pytest.approx(0.01, rel=0.05)
    assert found.decode(0) == pytest.approx(0.005, rel=0.1)


def test_steps_that_only_decode_say_nothing_about_prompts() -> None:
    found, random = learnt(TRUE), Random(0)
    before = found.token
    for _ in range(1000):
        found.note(16, 0, 0.0, TRUE.seconds(16, 0) * random.gauss(1, 0.05))
    assert found.token == before
    assert found.decode(16) == pytest.approx(TRUE.seconds(16, 0), rel=0.03)


def test_a_machine_that_slows_down_while_prompts_are_in_every_step() -> None:
    """None of the steps tells what decoding alone costs, so prompts count as dearer. Their sum is right."""
    found = learnt(TRUE)
    for _ in range(30):
        found.note(8, 30, 0.0, 2 * TRUE.seconds(8, 30))
    assert seconds(found, 8, 30) == pytest.approx(2 * TRUE.seconds(8, 30), rel=0.05)


def test_tokens_of_a_deep_prompt_cost_more() -> None:
    """As long as a token at `DOUBLE_DEPTH` costs twice as much as the first, the cost of a token stays the same."""
    deep, found = TRUE._replace(pair=TRUE.token / DOUBLE_DEPTH), learnt(TRUE)
    for start in range(0, 8000, 50):
        counts = 16, 50, 50 * (start + 25.0)
        found.note(*counts, deep.seconds(*counts))
    assert found.token == pytest.approx(TRUE.token, rel=0.02)


def test_a_step_that_something_held_up_counts_little() -> None:
    """They took 500 times as long and count as twice, once."""
    found = learnt(TRUE)
    for rows, tokens in ((16, 0), (16, 50)):
        found.note(rows, tokens, 0.0, 6.0)
        assert TRUE.seconds(rows, tokens) < seconds(found, rows, tokens) < 1.2 * TRUE.seconds(rows, tokens)


@pytest.mark.parametrize("absurd", [[1e9], [TRUE.seconds(16, 50)] * 100 + [0.0] * 2000, [1e5, 1e-7] * 500])
def test_steps_of_absurd_lengths_are_forgotten(absurd: list[float]) -> None:
    """A clock that stands still or jumps leaves no negative cost, and nothing that later steps cannot correct."""
    found = StepCost()
    for number, took in enumerate(absurd):
        found.note(4, number % 3 * 20, number % 3 * 2e4, took)
        assert min(found.row, found.decode(0), found.token) >= 0
    for _ in range(400):
        for rows, tokens in SHAPES:
            found.note(rows, tokens, 0.0, TRUE.seconds(rows, tokens))
            assert min(found.row, found.decode(0), found.token) >= 0
    for rows, tokens in SHAPES[1:]:
        assert seconds(found, rows, tokens) == pytest.approx(TRUE.seconds(rows, tokens), rel=0.1)


def budget(first: float, between: float) -> PromptBudget:
    """What it does once it knows exactly that 16 rows take 12 ms, 2 rows 5 ms, and a prompt token 0.2 ms."""
    prompts = PromptBudget(first, between)
    for rows in islice(cycle((16, 2)), 2000):
        prompts.cost.note(rows, 0, 0.0, TRUE.seconds(rows, 0))
    prompts.cost.note(16, 50, 0.0, TRUE.seconds(16, 50))
    return prompts


@pytest.mark.parametrize(
    ("rows", "waiting", "tokens"),
    [
        (16, [(0.0, 100)], 40),  # decoding leaves 8 of the 20 ms
        (16, [(0.05, 100)], 40),  # 130 ms are left for decoding, 10 steps: 10 tokens in each would do
        (16, [(0.15, 100)], 50),  # 30 ms are left for decoding: 2 steps
        (16, [(0.16, 100)], 100),  # 20 ms: 1 step
        (16, [(0.169, 100)], LARGEST),  # less than one step
        (16, [(9.0, 100)], LARGEST),  # late already
        (16, [(0.0, 900)], 900),  # 180 ms of work: 1 step
        (16, [(0.05, 100), (0.05, 400)], 125),  # both have 150 ms and take 100: 4 steps of 500 tokens
        (16, [(0.05, 100), (0.0, 100), (0.0, 900)], LARGEST),  # the last one will be late
        (2, [(0.0, 100)], 75),  # 15 ms
        (0, [(0.0, 100)], LARGEST),  # nobody waits for the next token
        (16, [], 40),
    ],
)
def test_prompts_get_what_decoding_leaves_or_what_their_first_tokens_need(
    rows: int, waiting: list[tuple[float, float]], tokens: float
) -> None:
    """The targets are 200 ms and 20 ms."""
    assert budget(0.2, 0.02).tokens(rows, 0, waiting) == pytest.approx(tokens, rel=0.03)


@pytest.mark.parametrize(
    ("first", "between", "tokens"),
    [
        (0.0, 0.0, LARGEST),
        (0.2, 0.0, LARGEST),  # nothing is held up
        (0.0, 0.02, 40),  # no prompt is late
        (0.0, 0.001, LEAST_TOKENS),
        (0.2, 0.001, LARGEST),
    ],
)
def test_a_target_of_0_limits_nothing(first: float, between: float, tokens: float) -> None:
    assert budget(first, between).tokens(16, 0, [(9.0, 100)]) == pytest.approx(tokens, rel=0.03)


def test_a_deep_prompt_gets_fewer_tokens() -> None:
    assert budget(0.0, 0.02).tokens(16, DOUBLE_DEPTH, []) == pytest.approx(20, rel=0.05)


def test_before_the_first_prompt_nothing_is_limited() -> None:
    prompts = PromptBudget(0.2, 0.02)
    prompts.cost.note(16, 0, 0.0, 0.012)
    assert prompts.tokens(16, 0, [(0.0, 100)]) == LARGEST


def chunked(prompts: PromptBudget, cost: Cost = TRUE) -> list[tuple[int, int]]:
    """Two sequences decode when a prompt of 1000 tokens comes. Returns the decoding rows and prompt tokens of the
    steps from then on."""
    info, now = make_info(page_size=16, pools=((None, 100),), max_model_len=1100), 0.0
    engine = Drive(info, max_sequences=4, max_step_tokens=256, prompts=prompts, clock=lambda: now)
    for number in (1, 2):
        engine.submit(number, [number] * 10, ANSWER)
    steps = list[tuple[int, int]]()
    while engine.scheduler.has_work:
        batch = engine.step()
        counts = batch.n_tokens - batch.n_prompt, batch.n_prompt
        now += cost.seconds(*counts)
        prompts.cost.note(*counts, batch.n_pairs, cost.seconds(*counts))
        steps.append(counts)
        if len(steps) == 8:
            engine.submit(3, [3] * 1000, ANSWER)
    engine.check_idle()
    assert all(engine.answers[number] == expected([number] * n, ANSWER) for number, n in ((1, 10), (2, 10), (3, 1000)))
    return steps[8:]


def test_a_chunk_beside_decoding_meets_the_target() -> None:
    """Two rows take 5 ms, so 15 ms are for prompts. The first guess, of short prompts, is wrong by half."""
    chunks = [(rows, tokens) for rows, tokens in chunked(PromptBudget(10.0, 0.02)) if tokens]
    assert all(rows == 2 for rows, _ in chunks)
    assert sum(tokens for _, tokens in chunks) == 1000
    for rows, tokens in chunks[5:-1]:
        assert TRUE.seconds(rows, tokens) == pytest.approx(0.02, rel=0.1)


def test_a_prompt_takes_no_more_than_it_needs_to_be_in_time() -> None:
    """Its 1000 tokens take 200 ms. In the other 100 are 20 steps of decoding, so 50 tokens in each are enough."""
    chunks = [(rows, tokens) for rows, tokens in chunked(budget(0.3, 0.001)) if tokens]
    assert sum(TRUE.seconds(*counts) for counts in chunks) < 0.3
    assert max(tokens for _, tokens in chunks) < 100


def test_a_prompt_that_will_be_late_gets_the_largest_steps() -> None:
    assert [tokens for _, tokens in chunked(budget(0.2, 0.02)) if tokens] == [254, 254, 254, 238]


def test_a_sequence_that_goes_on_has_had_its_first_token() -> None:
    """Its 1000 tokens take 200 ms: a prompt would be late. It comes from another engine, and gets small chunks."""
    prompts = budget(0.2, 0.02)
    info = make_info(page_size=16, pools=((None, 100),), max_model_len=1100)
    engine = Drive(info, max_sequences=4, max_step_tokens=256, prompts=prompts, clock=lambda: 0.0)
    engine.submit(1, [1] * 10, ANSWER)
    engine.step()
    output = expected([3] * 999, ANSWER)[:1]
    engine.submit(3, [3] * 999, ANSWER, output=output)
    chunks = list[int]()
    while engine.scheduler.has_work:
        batch = engine.step()
        chunks += [batch.n_prompt] if batch.n_prompt else []
    assert sum(chunks) == 1000
    assert max(chunks) < 100


def test_without_a_target_for_first_tokens_the_least_chunk_is_what_is_left() -> None:
    chunks = chunked(PromptBudget(0.0, 0.001), Cost(0.0, 0.001, 0.002))
    assert sum(tokens for _, tokens in chunks) == 1000
    assert {tokens for rows, tokens in chunks if rows and tokens} == {LEAST_TOKENS}


class BesideAnImage:
    """A prompt with an image of 1,200 tokens of work, whose first token is late, and what is submitted beside it."""

    def __init__(self, n_streams: int) -> None:
        info = info_with_images(media_tokens=900, page_size=16, pools=((None, 200),), max_model_len=1100)
        self._now = 0.0
        self.engine = ImageDrive(
            info, max_sequences=8, max_step_tokens=512, prompts=budget(0.2, 0.02), clock=lambda: self._now
        )
        for number in range(n_streams):
            self.engine.submit(number, [number + 1] * 10, ANSWER)
        if n_streams:
            self.engine.step()
        self.engine.ask(8, prompt_of([3], Picture(30, 30, b"\x01"), [4] * 100), ANSWER)
        self._now = 9.0

    def step(self) -> tuple[int, dict[int, int]]:
        """A step: its work for the image, in tokens, and the tokens of the other sequences."""
        batch = self.engine.step()
        tokens = {item.sequence_id: item.stop - item.start for item in batch.slices}
        work = sum(work.stop - work.start for work in batch.media) / FORMAT.patches_per_token
        return round(work) + tokens.pop(8, 0), tokens


def test_images_get_what_decoding_leaves_however_late_they_are() -> None:
    """Beside 2 rows 75 tokens are left, fewer at later positions. Behind the image its prompt is text, and late."""
    beside, steps = BesideAnImage(2), list[int]()
    while not beside.engine.answers[8]:
        of_image, streams = beside.step()
        assert streams == {0: 1, 1: 1}
        steps.append(of_image)
    assert all(60 <= tokens <= 75 for tokens in steps[:-2])
    assert len(steps) > 20


@pytest.mark.parametrize("n_streams", [0, 2])
def test_text_behind_an_image_gets_all_of_its_step(n_streams: int) -> None:
    """Though nothing may decode: else the text would wait for the whole image."""
    beside = BesideAnImage(n_streams)
    assert beside.step()[0] == (75 if n_streams else 512) - (n_streams > 0)
    beside.engine.submit(9, [9] * 300, ANSWER)
    beside._now = 18.0
    of_image, others = beside.step()
    assert (others[9], of_image) == (300, pytest.approx(38, abs=1))
    assert beside.step()[0] >= 70


def test_a_text_that_goes_on_shares_steps_with_an_image() -> None:
    """Its client has had a first token, so no target hurries it."""
    beside = BesideAnImage(2)
    beside.step()
    beside.engine.submit(9, [9] * 299, ANSWER, output=expected([9] * 299, ANSWER)[:1])
    for _ in range(6):
        of_image, others = beside.step()
        assert of_image == pytest.approx(37, abs=1)
        assert others[9] == pytest.approx(37, abs=2)


def test_the_stages_of_a_pipeline_share_the_budget() -> None:
    """Both decoding sequences and the 75 prompt tokens that fit beside them are for two steps in flight."""
    prompts = budget(0.0, 0.02)
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

    The default targets hold, the answers are checked.
    """
    info = make_info(page_size=16, pools=((None, 4000),), max_model_len=20_000)
    prompts = PromptBudget(0.2, 0.05, deadline)
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
        prompts.cost.note(rows, batch.n_prompt, batch.n_pairs, took[-1])
        prompts.pace.note(batch.n_tokens, batch.n_pairs, took[-1])
    engine.check_idle()
    assert all(engine.answers[number] == expected(prompt, answer) for number, prompt in enumerate(wanted))
    return took


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 4])
def test_no_running_sequence_stands_still_when_the_machine_becomes_slow(pipeline: int, rows: int) -> None:
    """A prompt is half computed when a token begins to take longer than a step may."""
    info = replace(make_info(page_size=16, pools=((None, 100),), max_model_len=1100), pipeline=pipeline)
    prompts = PromptBudget(deadline=1.0)
    engine = Drive(info, max_sequences=8, max_step_tokens=64, prompts=prompts)
    prompts.pace = StepPace()  # without a limit
    for number in range(rows):
        engine.submit(number, [number], ANSWER)
    for _ in range(4 * pipeline):
        engine.step()
    engine.submit(9, [9] * 300, ANSWER)
    engine.step()
    prompts.pace = StepPace(0.001)
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
    pace = StepPace(60.0)
    pace.note(30, 0.0, 15.0)
    assert pace.tokens(0) == pytest.approx(30)
    assert pace.tokens(8192) == pytest.approx(15)
    pace.note(30, 0.0, 0.0)
    assert pace.tokens(0) == pytest.approx(30 * SAFE)
