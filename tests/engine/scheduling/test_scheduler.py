"""Plans, chunks, reuse, preemption and the laws of DESIGN section 3, on a model that is arithmetic."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings

from model.sampling_params import SamplingParams
from service.engine.scheduling import prompt_lookup
from service.engine.scheduling.budget import PromptBudget
from tests.engine.driving import Drive, expected
from tests.engine.loads import Request, loads, play
from tests.fakes import BROKEN, LOST, make_info, parrot

PARAMS = SamplingParams(max_tokens=5)


def test_prompt_is_computed_in_chunks_and_decoding_goes_first() -> None:
    drive = Drive(make_info(), max_step_tokens=4)
    drive.submit(1, list(range(1, 12)), PARAMS)
    assert [item.stop - item.start for item in drive.step().slices] == [4]
    assert [item.stop - item.start for item in drive.step().slices] == [4]
    drive.submit(2, [1, 2], PARAMS)
    batch = drive.step()
    assert [(item.sequence_id, item.start, item.stop) for item in batch.slices] == [(1, 8, 11), (2, 0, 1)]
    batch = drive.step()  # 1 decodes, and 2 also has one token to compute: their slices are alike
    assert [(item.sequence_id, item.stop - item.start) for item in batch.slices] == [(1, 1), (2, 1)]
    drive.run()
    assert drive.answers[1] == expected(list(range(1, 12)), PARAMS)
    assert drive.finished == {1: "length", 2: "length"}


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
    assert drive.admitted(2).cached == 16
    assert drive.scheduler.stats().hit_tokens == 16


def test_an_embedding_survives_preemption_and_takes_nothing_from_the_cache() -> None:
    """The fake hidden state of a position is (its token, the position, 1)."""
    drive = Drive(make_info(pools=((None, 8),), max_model_len=32), max_sequences=3, max_step_tokens=3)
    prompt = [10 + n for n in range(12)]
    for sequence_id in (1, 2):
        drive.submit(sequence_id, [sequence_id] * 3, SamplingParams(max_tokens=13))
    drive.submit(3, prompt, SamplingParams(max_tokens=0, embed="mean"))
    drive.run()
    assert drive.scheduler.stats().preemptions > 0
    drive.submit(4, prompt, SamplingParams(max_tokens=0, embed="mean"))
    drive.submit(5, prompt, SamplingParams(max_tokens=0, embed="last"))
    drive.run()
    assert [drive.updates[n][-1].embedding for n in (3, 4, 5)] == [
        (15.5, 5.5, 1.0),
        (15.5, 5.5, 1.0),
        (21.0, 11.0, 1.0),
    ]
    assert [drive.admitted(n).cached for n in (4, 5)] == [0, 8]


def test_the_lowest_priority_is_admitted_first_and_equals_as_they_came() -> None:
    drive = Drive(make_info(), max_sequences=1, max_step_tokens=8)
    priorities = {1: 0, 2: 5, 3: 0, 4: -1, 5: 5, 6: -1}
    for sequence_id, priority in priorities.items():
        drive.submit(sequence_id, [1, 2, 3], PARAMS, priority=priority)
    drive.scheduler.abort(3)
    drive.run()
    assert list(drive.finished) == [4, 6, 1, 2, 5]


def test_a_preempted_sequence_waits_before_those_that_came_after_it() -> None:
    drive = Drive(make_info(pools=((None, 8),), max_model_len=32), max_step_tokens=32)
    for sequence_id in (1, 2, 3):
        drive.submit(sequence_id, [sequence_id] * 6, SamplingParams(max_tokens=20))
    while not drive.scheduler.stats().preemptions:
        drive.step()
    n_steps = len(drive.runner.steps)
    drive.submit(4, [4], SamplingParams(max_tokens=1))
    drive.submit(5, [5], SamplingParams(max_tokens=1), priority=-1)
    drive.run()
    later = [item.sequence_id for batch in drive.runner.steps[n_steps:] for item in batch.slices]
    assert later.index(5) < later.index(3) < later.index(4)
    assert drive.answers[3] == expected([3] * 6, SamplingParams(max_tokens=20))


def test_pages_are_shared_among_those_with_one_owner_and_one_salt_only() -> None:
    drive = Drive(make_info(page_size=4), max_step_tokens=64)
    prompt, reused = list(range(1, 18)), []
    owners = [("", ""), ("a", ""), ("b", ""), ("a", "x"), ("", "a"), ("a", ""), ("b", ""), ("a", "x"), ("", "")]
    for sequence_id, (owner, salt) in enumerate(owners):
        drive.submit(sequence_id, prompt, PARAMS, cache_owner=owner, cache_salt=salt)
        drive.run()
        reused.append(drive.admitted(sequence_id).cached)
        assert drive.answers[sequence_id] == expected(prompt, PARAMS)
    assert reused == [0, 0, 0, 0, 0, 16, 16, 16, 16]


def test_a_salt_that_spells_a_page_is_not_its_name() -> None:
    """Otherwise its owner would get a stranger's second page as its own first page, with wrong positions."""
    drive = Drive(make_info(page_size=4), max_step_tokens=64)
    drive.submit(1, list(range(1, 18)), PARAMS)
    drive.run()
    spelled = array("q", range(1, 5)).tobytes().decode()
    drive.submit(2, list(range(5, 18)), PARAMS, cache_salt=spelled)
    drive.run()
    assert drive.admitted(2).cached == 0
    assert drive.answers[2] == expected(list(range(5, 18)), PARAMS)


def test_a_failed_step_ends_only_its_own_sequences() -> None:
    drive = Drive(make_info(), max_sequences=1)
    for sequence_id in (1, 2):
        drive.submit(sequence_id, [1, 2, 3], PARAMS)
    drive.scheduler.plan()
    assert [(update.id, update.finish) for update in drive.scheduler.fail_steps()] == [(1, "error")]
    drive.run()
    assert drive.answers[2] == expected([1, 2, 3], PARAMS)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 4), ([1] * 100, 29)])
def test_what_could_never_finish_is_refused(prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.128"):
        Drive(make_info()).submit(1, prompt, SamplingParams(max_tokens=max_tokens))


DRAFTING = SamplingParams(max_tokens=60, prompt_lookup_num_tokens=8, logprobs=1)


def accepted(drive: Drive) -> int:
    return drive.scheduler.stats().drafts("accepted")


def test_drafts_save_steps_and_change_nothing() -> None:
    drive = Drive(make_info(), say=parrot)
    drive.submit(1, [1, 2, 3], DRAFTING)
    while drive.scheduler.has_work:
        drive.step()
        computed = 0 if drive.finished else 3 + len(drive.answers[1]) - 1
        assert drive.scheduler.pools[0].stats.held == -(-computed // 4)  # pages of rejected draft tokens were released
    assert drive.answers[1] == expected([1, 2, 3], DRAFTING, say=parrot)
    assert [item.token for update in drive.updates[1] for item in update.logprobs] == drive.answers[1]
    assert (
        drive.scheduler.stats().drafts("drafted") > accepted(drive) > 0
    )  # some draft tokens were right, some were not
    assert len(drive.runner.steps) == 60 - accepted(drive)


def learnt(step: float, row: float) -> PromptBudget:
    """What steps that decode cost is known: a step without rows, and each row, take so many seconds."""
    prompts = PromptBudget()
    for rows in (2, 24) * 50 * bool(row):
        prompts.cost.note(rows, 0, 0.0, step + row * rows)
    return prompts


@pytest.mark.parametrize(
    ("asked", "own", "cost", "longest"),
    [
        (None, 8, (0.01, 0.001), 8),
        (None, 8, (0.0, 0.01), 0),  # one row more takes as long as one step more
        (None, 8, (0.0, 0.0), 8),  # nothing is measured yet
        (None, 0, (0.01, 0.001), 0),
        (0, 8, (0.01, 0.001), 0),
        (3, 8, (0.01, 0.001), 3),
        (3, 0, (0.01, 0.001), 3),
    ],
)
def test_drafts_are_added_where_they_pay(asked: int | None, own: int, cost: tuple[float, float], longest: int) -> None:
    info = replace(make_info(), prompt_lookup_num_tokens=own)
    drive = Drive(info, max_step_tokens=64, say=lambda tokens, choice: 57, prompts=learnt(*cost))
    drive.submit(1, [57] * 8, SamplingParams(max_tokens=60, prompt_lookup_num_tokens=asked))
    drive.run()
    assert max(item.n_draft for step in drive.runner.steps for item in step.slices) == longest
    assert drive.answers[1] == [57] * 60


def test_a_prompt_goes_before_drafts() -> None:
    drive = Drive(make_info(), max_step_tokens=6, say=lambda tokens, choice: 57)
    drive.submit(1, [57] * 4, DRAFTING)
    while not accepted(drive):
        drive.step()
    drive.submit(2, list(range(1, 9)), PARAMS)
    assert [(item.stop - item.start, item.n_draft) for item in drive.step().slices] == [(1, 0), (5, 0)]


@pytest.fixture
def accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "FIRST_ACCEPTANCES", (0.99,) * 4)


@pytest.mark.usefixtures("accepting")
def test_nobody_is_preempted_for_a_draft() -> None:
    """The second sequence holds three of five pages until it ends. The first drafts to the end of its two pages."""
    drive = Drive(make_info(pools=((None, 5),), max_model_len=16), max_step_tokens=64, say=lambda tokens, choice: 57)
    drive.submit(1, [57] * 2, SamplingParams(max_tokens=13, prompt_lookup_num_tokens=8))
    drive.submit(2, list(range(1, 11)), SamplingParams(max_tokens=2))
    assert [[item.n_draft for item in drive.step().slices] for _ in range(3)] == [[0, 0], [5, 0], [5]]
    drive.run()
    assert drive.answers[1] == [57] * 13
    assert drive.scheduler.stats().preemptions == 0


@pytest.mark.usefixtures("accepting")
def test_a_stop_token_in_a_draft_ends_the_answer() -> None:
    prompt = [40 + n % 4 for n in range(20)]
    drive = Drive(make_info(), max_step_tokens=64, say=lambda tokens, choice: 40 + len(tokens) % 4)
    drive.submit(1, prompt, SamplingParams(max_tokens=9, prompt_lookup_num_tokens=8, stop_token_ids=(42,)))
    drive.run()
    (last,) = drive.runner.steps[-1].slices
    assert list(last.tokens[-last.n_draft :])[:4] == [40, 41, 42, 43]  # in the step of the prompt
    assert (drive.answers[1], drive.finished[1]) == ([40, 41, 42], "stop")


@settings(max_examples=100, deadline=None)
@given(loads())
def test_random_loads_keep_the_laws(load: tuple[Drive, list[Request]]) -> None:
    play(*load)


def test_a_grammar_that_cannot_be_followed_ends_its_own_sequence_alone() -> None:
    drive = Drive(make_info())
    drive.submit(1, [1, 2, 3], SamplingParams(max_tokens=5))
    drive.submit(2, [1, 2, 3], SamplingParams(max_tokens=5, grammar=BROKEN))
    drive.submit(3, [1, 2, 3], SamplingParams(max_tokens=5, grammar=LOST))
    drive.run()
    assert drive.finished == {1: "length", 2: "error", 3: "error"}
    broken, faulty = (drive.updates[number][-1] for number in (2, 3))
    assert (broken.failure, broken.fault) == ("the grammar is broken", None)
    assert (faulty.failure, faulty.fault) == (None, "the process that follows grammars was lost")
    assert drive.answers[1] == expected([1, 2, 3], SamplingParams(max_tokens=5))
