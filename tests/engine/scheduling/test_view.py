"""What a picture shows of the scheduler: the order of the queue, and why a sequence waits."""

from random import Random
from typing import Any

import pytest

from model.sampling_params import SamplingParams
from service.engine.picture import MAX_QUEUED, MAX_RUNNING
from service.engine.scheduling.view import View
from tests.engine.driving import Drive
from tests.fakes import make_info


def driven(n_pages: int = 64, **limits: int) -> Drive:
    return Drive(make_info(pools=((None, n_pages),)), **limits)


def submit(drive: Drive, number: int, n_prompt: int = 4, max_tokens: int = 8, **more: Any) -> None:
    drive.submit(number, [33 + number] * n_prompt, SamplingParams(max_tokens=max_tokens), **more)


def view(drive: Drive, **preparing: int) -> View:
    return drive.scheduler.view({int(key[1:]): n for key, n in preparing.items()})


def reasons(drive: Drive) -> dict[int, tuple[str, str | None, int | None]]:
    places = dict(view(drive).of(range(100)).places)
    shown = view(drive).whole(()).sequences
    return {item.id: (item.state, item.reason, places.get(item.id)) for item in shown}


@pytest.mark.parametrize("seed", range(6))
def test_the_order_shown_is_the_order_of_admission(seed: int) -> None:
    """While one sequence runs, more of three tenants and two priorities wait; no answer is longer than no token."""
    rng, drive = Random(seed), driven(max_sequences=1)
    submit(drive, 0, max_tokens=3)
    drive.step()
    for number in range(1, 15):
        tenant, priority = rng.choice("abc"), rng.choice((0, 1))
        submit(drive, number, rng.randint(1, 12), max_tokens=0, tenant=tenant, priority=priority)
    shown = [item.id for item in view(drive).waiting]
    admitted: dict[int, None] = {}
    while drive.scheduler.has_work:
        admitted |= dict.fromkeys(item.sequence_id for item in drive.step().slices if item.sequence_id)
    assert [*admitted] == shown


def test_a_sequence_waits_for_a_place_among_those_that_run() -> None:
    drive = driven(max_sequences=1)
    for number in range(3):
        submit(drive, number)
    drive.step()
    assert reasons(drive) == {
        0: ("decode", None, None),
        1: ("waiting", "sequences", 1),
        2: ("waiting", "sequences", 2),
    }


def test_a_sequence_waits_for_pages() -> None:
    drive = driven(n_pages=6)
    submit(drive, 0, 12)
    drive.step()
    submit(drive, 1, 12)
    assert reasons(drive)[1] == ("waiting", None, 1)  # no plan has seen it
    for _ in range(2):
        drive.step()
    assert reasons(drive)[1] == ("waiting", "pages", 1)


def test_a_sequence_waits_for_tokens_of_the_step() -> None:
    drive = driven(max_step_tokens=4)
    submit(drive, 0, 12)
    submit(drive, 1, 4)
    drive.step()
    assert reasons(drive) == {0: ("prompt", None, None), 1: ("waiting", "tokens", 1)}


def test_a_sequence_waits_for_its_fair_turn_or_behind_a_priority() -> None:
    drive = driven(max_sequences=1)
    submit(drive, 0, 12, tenant="much")
    drive.step()
    submit(drive, 1, tenant="much")
    submit(drive, 2, tenant="little")
    submit(drive, 3, tenant="other", priority=-1)
    drive.step()
    shown = reasons(drive)
    assert (shown[3], shown[2]) == (("waiting", "sequences", 1), ("waiting", "priority", 2))
    assert shown[1] == ("waiting", "priority", 3)
    drive.scheduler.abort(3)
    drive.step()
    assert reasons(drive)[1] == ("waiting", "fairness", 2)


def test_a_preempted_sequence_is_shown_as_such() -> None:
    drive = driven(n_pages=6, max_step_tokens=16)
    for number in (0, 1):
        submit(drive, number, 7, max_tokens=14)
    while not drive.scheduler.stats().preemptions:
        drive.step()
    assert reasons(drive)[1] == ("preempted", "pages", 1)


def test_a_grammar_is_compiled_before_a_sequence_waits() -> None:
    """The scheduler does not have the sequence yet; once it has, it is shown once."""
    drive = driven()
    submit(drive, 1)
    shown = view(drive, _1=4, _7=9).whole(()).sequences
    assert [(item.id, item.reason, item.prompt) for item in shown] == [(1, None, 4), (7, "grammar", 9)]


def test_pages_of_two_sequences_are_shown_as_shared() -> None:
    """A second sequence begins with two pages of the first one."""
    drive = driven(max_step_tokens=16)
    drive.submit(0, [40 + n for n in range(10)], SamplingParams(max_tokens=8))
    drive.step()
    drive.submit(1, [*(40 + n for n in range(8)), 7, 7], SamplingParams(max_tokens=8))
    drive.step()
    first, second = (item.pages[0] for item in view(drive).whole(()).sequences)
    assert first.shared == second.shared == (0, 1)
    assert first.ids[:2] == second.ids[:2]
    assert len(first.ids) > 2


def test_what_is_left_out_is_counted() -> None:
    drive = driven()
    for number in range(MAX_QUEUED + 53):
        submit(drive, number)
    picture = view(drive).whole(())
    assert (len(picture.sequences), picture.left_out) == (MAX_QUEUED, 53)
    asked = view(drive).of([3, 68])
    assert [item.id for item in asked.sequences] == [3, 68]
    assert asked.places == ((3, 4), (68, 69))


def test_a_full_engine_does_not_hide_its_queue() -> None:
    drive = driven(512, max_sequences=MAX_RUNNING + 2, max_step_tokens=512)
    for number in range(MAX_RUNNING + 5):
        submit(drive, number)
    drive.step()
    picture = view(drive).whole(())
    assert [item.state for item in picture.sequences[MAX_RUNNING:]] == ["waiting"] * 3
    assert (len(picture.sequences), picture.left_out) == (MAX_RUNNING + 3, 2)
