"""Places for LoRA adapters: how many run at a time, who is passed over, and that nobody waits for ever."""

from collections.abc import Callable, Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.batch import StepBatch
from model.sampling_params import SamplingParams
from service.engine.messages import AdapterStats, Submit
from service.engine.scheduling.pages import chain_seed
from service.engine.scheduling.scheduler import Scheduler
from tests.engine.driving import Drive, expected
from tests.fakes import make_info, shade

SHORT, LONG = SamplingParams(max_tokens=4), SamplingParams(max_tokens=12)
PATHS = {number: f"/adapters/{name}" for number, name in enumerate("abcdef", start=1)}


class Adapters(Drive):
    """An engine with a few places for adapters; all of PATHS are loaded."""

    def __init__(
        self,
        n_places: int,
        *,
        max_sequences: int = 8,
        n_pages: int = 64,
        ready: Callable[[int, Collection[int]], bool] = lambda adapter, running: True,
    ) -> None:
        info = make_info(pools=((None, n_pages),), max_adapters=n_places)
        super().__init__(info, max_sequences=max_sequences, max_step_tokens=32)
        self.scheduler = Scheduler(info, max_sequences=max_sequences, max_step_tokens=32, adapter_ready=ready)
        self.runner.adapters = dict(PATHS)
        self.n_places = n_places

    def step(self) -> StepBatch:
        batch = super().step()
        used = {item.adapter for item in batch.slices} - {0}
        assert len(used) <= self.n_places
        return batch

    def running(self) -> list[int]:
        """The ids in the next step."""
        return [item.sequence_id for item in self.step().slices]


def answer(prompt: list[int], params: SamplingParams, adapter: int) -> list[int]:
    return expected(prompt, params, shade(PATHS[adapter]) if adapter else 0)


def test_a_sequence_with_one_adapter_too_many_is_passed_over() -> None:
    drive = Adapters(2)
    for number, adapter in enumerate((1, 2, 3, 0, 2)):
        drive.submit(number, [7, number], SHORT, adapter=adapter)
    assert drive.running() == [0, 1, 3, 4]
    assert drive.scheduler.stats().adapters == (AdapterStats(1, 1, 0), AdapterStats(2, 2, 0), AdapterStats(3, 0, 1))
    (waiting,) = [item for item in drive.scheduler.view({}).whole(()).sequences if item.state == "waiting"]
    assert (waiting.id, waiting.reason) == (2, "adapters")
    drive.run()
    assert [drive.answers[n] for n in range(5)] == [answer([7, n], SHORT, a) for n, a in enumerate((1, 2, 3, 0, 2))]
    assert drive.scheduler.stats().adapters == ()


def test_an_adapter_does_not_wait_for_ever_behind_others_that_never_pause() -> None:
    """Each step brings a new sequence of the two that run. The third still runs after a bounded time."""
    drive = Adapters(2)
    drive.submit(0, [1], LONG, adapter=1)
    drive.submit(1, [2], LONG, adapter=2)
    drive.step()
    drive.submit(2, [3], SHORT, adapter=3)
    for number in range(3, 40):
        drive.submit(number, [number], LONG, adapter=1 + number % 2)
        if 2 in drive.running():
            break
    assert number < 20, "it waits for the twelve tokens of the sequences that ran when it came, not for later ones"
    drive.run()
    assert drive.answers[2] == answer([3], SHORT, 3)


def test_without_a_blocked_sequence_an_adapter_keeps_its_place() -> None:
    drive = Adapters(1)
    drive.submit(0, [1], LONG, adapter=1)
    drive.step()
    drive.submit(1, [2], LONG, adapter=1)
    assert drive.running() == [0, 1]


def test_those_before_a_blocked_sequence_may_still_join_its_obstacle() -> None:
    """The order of the queue is kept: only what comes after the blocked one waits for it."""
    drive = Adapters(1, max_sequences=2)
    for number, adapter in enumerate((1, 1, 1, 2, 1)):
        drive.submit(number, [number + 1], SHORT, adapter=adapter)
    order: list[int] = []
    while drive.scheduler.has_work:
        order += [number for number in drive.running() if number not in order]
    assert order == [0, 1, 2, 3, 4]


def test_an_engine_without_places_refuses_adapters() -> None:
    scheduler = Scheduler(make_info(max_adapters=0), max_sequences=2, max_step_tokens=8)
    with pytest.raises(ValueError, match="adapter 1 cannot be used"):
        scheduler.submit(Submit(1, [1], SHORT, adapter=1))
    assert not scheduler.has_work


def test_pages_are_apart_by_adapter_and_salt() -> None:
    """The fake model also checks that a page was written with the adapter that reads it."""
    seeds = [chain_seed(salt, adapter) for salt in ("", "a", "b") for adapter in ("", "1", "256")]
    assert len(set(seeds)) == len(seeds)
    assert chain_seed("") == b""
    drive, prompt = Adapters(4), list(range(1, 14))
    for number, (adapter, cached) in enumerate([(0, 0), (1, 0), (2, 0), (1, 12), (0, 12), (2, 12)]):
        drive.submit(number, prompt, SHORT, adapter=adapter)
        drive.run()
        assert drive.admitted(number).cached == cached
        assert drive.answers[number] == answer(prompt, SHORT, adapter)


def test_the_reason_of_a_miss_knows_the_adapter() -> None:
    drive, prompt = Adapters(4), list(range(1, 14))
    for number, adapter in enumerate((1, 2, 2)):
        drive.submit(number, [*prompt, number], SHORT, adapter=adapter)
        drive.run()
    misses = [drive.admitted(number).miss for number in range(3)]
    assert [miss and miss.reason for miss in misses] == ["new", "new", None]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_loads_end_and_every_answer_is_right(data: st.DataObject) -> None:
    """With few pages sequences are preempted, which frees and takes places in the middle of a plan."""
    n_places = data.draw(st.integers(1, 3))
    drive = Adapters(n_places, max_sequences=data.draw(st.integers(1, 5)), n_pages=data.draw(st.integers(8, 20)))
    works = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12), st.integers(1, 12)), max_size=14))
    for number, (adapter, length, n) in enumerate(works):
        prompt, params = [1 + (number + i) % 200 for i in range(length)], SamplingParams(max_tokens=n)
        drive.submit(number, prompt, params, adapter=adapter, tenant=data.draw(st.sampled_from("xy")))
        if data.draw(st.booleans()) and drive.scheduler.has_work:
            drive.step()
    if works and data.draw(st.booleans()):
        drive.scheduler.abort(0)
    drive.run()
    assert drive.scheduler.stats().adapters == ()
    for number, (adapter, length, n) in enumerate(works):
        if number in drive.finished:
            prompt = [1 + (number + i) % 200 for i in range(length)]
            assert drive.answers[number] == answer(prompt, SamplingParams(max_tokens=n), adapter)


class Store:
    """The adapters in memory of an engine that reads others when the test says so."""

    def __init__(self, *adapters: int) -> None:
        self.adapters, self.asked = set(adapters), list[tuple[int, tuple[int, ...]]]()

    def ready(self, adapter: int, running: Collection[int]) -> bool:
        if adapter not in self.adapters:
            self.asked.append((adapter, tuple(running)))
        return adapter in self.adapters


def test_only_the_sequences_of_an_adapter_wait_until_it_is_read() -> None:
    store = Store(1, 2)
    drive = Adapters(2, ready=store.ready)
    for number, adapter in enumerate((1, 3, 3, 2, 0)):
        drive.submit(number, [7, number], LONG, adapter=adapter)
    assert drive.running() == [0, 4], "the second place is kept for 3"
    assert drive.running() == [0, 4]
    assert store.asked == [(3, (1,))]
    drive.scheduler.note_adapter(3)
    assert drive.running() == [0, 4, 1, 2]
    drive.run()
    assert [drive.answers[n] for n in range(5)] == [answer([7, n], LONG, a) for n, a in enumerate((1, 3, 3, 2, 0))]


def test_an_adapter_that_nobody_waits_for_any_more_gives_its_place_back() -> None:
    store = Store(2)
    drive = Adapters(1, ready=store.ready)
    drive.submit(0, [7], SHORT, adapter=1)
    drive.submit(1, [8], SHORT, adapter=2)
    assert drive.running() == []
    assert drive.scheduler.waits_for_files
    drive.scheduler.abort(0)
    assert drive.running() == []
    drive.scheduler.note_adapter(1)
    assert drive.running() == [1]
    assert not drive.scheduler.waits_for_files
    drive.run()
