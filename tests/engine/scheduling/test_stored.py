"""Prompts that begin with pages from the disk, judged by the fake model, which reads what is in its pages."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.sampling_params import SamplingParams
from service.engine.messages import PrefixMiss
from service.engine.scheduling.pages import page_content
from tests.engine.driving import Drive
from tests.engine.loads import Request, loads, play
from tests.engine.stored import Disk, StoredDrive
from tests.fakes import FAULTY, make_info

SIZE = 4
PARAMS = SamplingParams(max_tokens=5)
PROMPT = [40 + n % 50 for n in range(30)]


def engine(disk: Disk, pools: tuple[tuple[int | None, int], ...] = ((None, 64),), **more: bool) -> StoredDrive:
    return StoredDrive(replace(make_info(page_size=SIZE, pools=pools), **more), disk, max_step_tokens=20)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_engine_goes_on_where_the_last_one_ended(ahead: bool) -> None:
    """At the end all pages are saved. The second turn computes less than a page of the first one again."""
    disk: Disk = {}
    first = engine(disk, runs_ahead=ahead)
    assert first.serve(PROMPT, PARAMS) == (0, 0)
    first.scheduler.save_pages(1.0)
    chat = PROMPT + first.answers[0]
    second = engine(disk, runs_ahead=ahead)
    n_full = (len(chat) - 1) // SIZE * SIZE
    assert second.serve([*chat, 7, 7], PARAMS) == (n_full, n_full)
    assert second.serve([*chat, 7, 7], PARAMS) == (36, 0), "it is in memory now"
    stats = second.scheduler.stats()
    assert (stats.queried_tokens, stats.hit_tokens, stats.disk_tokens) == (74, n_full + 36, n_full)


def test_an_answer_goes_on_in_the_next_engine_from_pages_on_disk() -> None:
    """The engine has died in the middle of the answer. Only the last known token is computed again."""
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    second = engine(disk)
    second.submit(0, PROMPT, PARAMS, output=first.answers[0][:3])
    second.run()
    assert second.answers[0] == first.answers[0][3:]
    assert second.scheduler.stats().prompt_tokens == 0


def test_pages_are_saved_when_they_are_evicted_and_while_the_engine_is_idle() -> None:
    disk: Disk = {}
    drive = engine(disk, ((None, 12),))
    drive.serve(PROMPT, PARAMS)
    assert not disk
    drive.serve([9] * 40, PARAMS)
    assert len(disk) == 7
    drive.scheduler.save_pages()
    assert len(disk) == 15, "so many at a time"
    drive.scheduler.save_pages()
    assert len(disk) == 8 + 11
    written = drive.store.counts["pages_written"]
    assert drive.serve(PROMPT, PARAMS) == (28, 24)
    assert drive.store.counts["pages_written"] == written, "a page that is on disk is not written again"
    assert drive.store.touched


@pytest.mark.parametrize("window", [1, 4, 5, 9, 20])
def test_a_window_needs_the_last_pages_of_a_prefix_only(window: int) -> None:
    """Of the windowed pool no other pages are saved. Of a system prompt that two begin with, its last pages are."""
    disk: Disk = {}
    first = engine(disk, ((None, 64), (window, 64)))
    first.serve(PROMPT, PARAMS)
    first.serve([*PROMPT[:21], 9, 9, 9], PARAMS)
    first.scheduler.save_pages(1.0)
    kept = sum(pool == 1 for pool, _ in disk)
    n_seen = -(-(window - 1) // SIZE)
    assert kept <= 4 * n_seen
    chat = PROMPT + first.answers[0]
    assert engine(disk, ((None, 64), (window, 64))).serve(PROMPT, PARAMS) == (28, 28)
    assert engine(disk, ((None, 64), (window, 64))).serve([*chat, 7], PARAMS) == (32, 32)
    assert engine(disk, ((None, 64), (window, 64))).serve([*PROMPT[:21], 8, 8, 8], PARAMS) == (20, 20)


@pytest.mark.parametrize("n_prompt", [28, 29, 30])
def test_of_a_windowed_pool_the_last_pages_that_a_prompt_can_reuse_are_saved(n_prompt: int) -> None:
    """Its last token is computed again: 29 tokens can reuse seven pages of four. The answer is far longer."""
    disk: Disk = {}
    pools = ((None, 64), (5, 64))
    prompt, params = PROMPT[:n_prompt], SamplingParams(max_tokens=16)
    first = engine(disk, pools)
    first.serve(prompt, params)
    first.scheduler.save_pages(1.0)
    n_full = (n_prompt - 1) // SIZE * SIZE
    assert engine(disk, pools).serve(prompt, params) == (n_full, n_full)


def test_a_page_that_cannot_be_read_is_computed() -> None:
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    names = list(disk)[::-1]
    for n_lost in range(len(names)):
        some = {name: disk[name] for place, name in enumerate(names) if place != n_lost}
        drive = engine(some)
        cached, from_disk = drive.serve(PROMPT, PARAMS)
        assert cached == from_disk == min(n_lost, 7) * SIZE


def test_a_page_that_is_lost_while_it_is_read_is_computed() -> None:
    """What was read before it stays. The request counts once."""
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    drive = engine(disk)
    drive.submit(0, PROMPT, PARAMS)
    drive.scheduler.plan()
    (reading,) = drive.store.readings
    del disk[0, reading.pages[3][1].name]
    drive.run()
    found = drive.admitted(0)
    assert (found.cached, found.from_disk) == (12, 12), "it went back to the queue, and found what it had read"
    assert drive.scheduler.stats().queried_tokens == len(PROMPT)


def test_others_decode_while_pages_are_read() -> None:
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    drive = engine(disk)
    drive.submit(0, [1, 2, 3], SamplingParams(max_tokens=20))
    drive.step()
    drive.submit(1, PROMPT, PARAMS)
    drive.submit(2, PROMPT, PARAMS)
    for _ in range(5):
        batch = drive.scheduler.plan()
        assert [item.sequence_id for item in batch.slices] == [0]
        drive.scheduler.commit(drive.runner.step(batch))
    assert len(drive.store.readings) == 1, "the second request waits for the pages of the first"
    assert drive.scheduler.due == [0]
    drive.run()
    assert [drive.admitted(number).from_disk for number in (1, 2)] == [28, 0]


def test_a_sequence_behind_a_reading_is_passed_over() -> None:
    """An unrelated one is served before the disk answers. The one behind has its place again if the reader goes."""
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    drive = engine(disk, ((None, 16),))
    for number in (1, 2, 4):
        drive.submit(number, PROMPT, PARAMS)
    drive.submit(3, [1, 2, 3], PARAMS)
    while 3 not in drive.finished:
        batch = drive.scheduler.plan()
        assert [item.sequence_id for item in batch.slices] == [3]
        shown = drive.scheduler.view({}).whole(()).sequences
        assert [(item.id, item.reason) for item in shown] == [(1, "disk"), (3, None), (2, "disk"), (4, "disk")]
        drive._take(drive.scheduler.commit(drive.runner.step(batch)))
    drive.scheduler.abort(2)
    drive.scheduler.abort(1)
    drive.run()
    assert drive.admitted(4).from_disk == 28


def test_a_sequence_is_not_said_to_wait_for_one_that_is_passed_over() -> None:
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    drive = StoredDrive(make_info(page_size=SIZE, pools=((None, 64),)), disk, max_sequences=2)
    drive.submit(0, [1, 2, 3], PARAMS)
    drive.submit(1, PROMPT, PARAMS)
    drive.scheduler.plan()
    for number in (2, 4):
        drive.submit(number, [1, 2, 3], PARAMS)
    drive.submit(3, PROMPT, PARAMS, priority=-1)
    drive.scheduler.abort(0)
    drive.scheduler.plan()
    shown = drive.scheduler.view({}).whole(()).sequences
    assert [(item.id, item.reason) for item in shown] == [(1, "disk"), (2, None), (3, "disk"), (4, "sequences")]


@pytest.mark.parametrize("running", [False, True])
def test_a_request_that_is_aborted_while_it_reads_gives_its_pages_back(running: bool) -> None:
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    drive = engine(disk, ((None, 12),))
    drive.submit(0, PROMPT, PARAMS)
    drive.scheduler.plan()
    drive.scheduler.abort(0)
    assert not drive.scheduler.has_work
    drive.scheduler.check_idle()
    if running:
        drive.store.work()  # nothing may be written now
    assert drive.serve([9] * 40, PARAMS) == (0, 0)
    assert drive.serve(PROMPT, PARAMS) == (28, 28)


@pytest.mark.parametrize(
    "owned", [{}, {"cache_owner": "a"}, {"cache_salt": "a"}, {"cache_owner": "a", "cache_salt": "b"}]
)
def test_owner_and_salt_divide_the_pages_on_disk(owned: dict[str, str]) -> None:
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS, **owned)
    first.scheduler.save_pages(1.0)
    others = [
        {},
        {"cache_owner": "a"},
        {"cache_salt": "a"},
        {"cache_owner": "a", "cache_salt": "b"},
        {"cache_owner": "b"},
    ]
    for other in others:
        assert engine(disk).serve(PROMPT, PARAMS, **other)[1] == (28 if other == owned else 0)


def test_adapters_are_known_by_their_files_and_not_by_their_numbers() -> None:
    disk: Disk = {}

    def from_disk(adapter: int, paths: dict[int, str]) -> int:
        drive = engine(disk)
        drive.runner.adapters.update(paths)
        drive.submit(0, PROMPT, PARAMS, adapter=adapter)
        drive.run()
        drive.scheduler.save_pages(1.0)
        return drive.admitted(0).from_disk

    assert from_disk(1, {1: "/wheel"}) == 0
    assert engine(disk).serve(PROMPT, PARAMS) == (0, 0)
    assert from_disk(1, {1: "/river"}) == 0
    page_of_another = 28  # the fake model would fail: its pages have the number
    with pytest.raises(AssertionError, match="page holds"):
        assert from_disk(2, {1: "/river", 2: "/wheel"}) == page_of_another


def test_images_are_compared_too() -> None:
    content = page_content([1, 2, 3, 4], [(1, "a")])
    assert len({content, page_content([1, 2, 3, 4]), page_content([1, 2, 3, 4], [(1, "b")])}) == 3
    assert page_content([1, 2, 3, 4], [(2, "a")]) != content


def test_a_page_with_broken_numbers_leaves_the_disk() -> None:
    disk: Disk = {}
    drive = engine(disk)
    drive.serve(PROMPT, PARAMS)
    drive.scheduler.save_pages(1.0)
    n_before = len(disk)
    drive.submit(9, [*PROMPT[:20], FAULTY], PARAMS)
    drive.run()
    assert drive.finished[9] == "error"
    assert len(disk) == n_before - 5
    assert engine(disk).serve(PROMPT, PARAMS) == (0, 0)


def test_the_reason_of_a_miss_counts_from_the_disk() -> None:
    disk: Disk = {}
    first = engine(disk)
    first.serve(PROMPT, PARAMS)
    first.scheduler.save_pages(1.0)
    drive = engine(disk)
    drive.serve([*PROMPT, 1, 2, 3, 4], PARAMS)
    assert drive.admitted(0).miss == PrefixMiss(28, "new")


@given(loads(), st.randoms(), st.randoms())
@settings(deadline=None)
def test_random_loads_keep_the_laws_with_a_disk(
    load: tuple[Drive, list[Request]], first: Random, second: Random
) -> None:
    """Two engines serve the same requests, one after the other. Pages are dropped, lost and damaged on the way.

    Ranks have no store, and only they keep several steps in flight that are not computed in their order.
    """
    drive, requests = load
    info = replace(drive.info, pipeline=1)
    disk: Disk = {}
    for luck in (first, second):
        options = {"max_sequences": drive.info.max_sequences, "max_step_tokens": drive.max_step_tokens}
        again = StoredDrive(info, disk, luck=luck, say=drive.say, order=drive.order, lack=drive.lack, **options)
        play(again, requests)
        again.scheduler.save_pages()
        again.scheduler.save_pages(0.0)
