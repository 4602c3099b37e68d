"""The order of the waiting queue: fair shares as in arXiv 2401.00588, within its bound."""

import tracemalloc
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.batch import StepBatch
from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from service.engine.scheduling.queue import GENERATED_WEIGHT, PROMPT_WEIGHT
from service.engine.scheduling.scheduler import Scheduler
from tests.engine.driving import Drive, expected
from tests.fakes import make_info

N_PAGES, PAGE_SIZE, LONGEST_PROMPT, LONGEST_ANSWER = 8, 4, 16, 12
BOUND = 2 * max(PROMPT_WEIGHT * LONGEST_PROMPT, GENERATED_WEIGHT * N_PAGES * PAGE_SIZE)
"""The paper's theorem 4.4: 2 max(w_p L_input, w_q M), where M is the number of tokens in the KV cache."""


@dataclass(frozen=True)
class Work:
    """A request: who sends it, and its numbers of tokens."""

    tenant: str
    n_prompt: int = 8
    max_tokens: int = 8
    priority: int = 0


class Tenants(Drive):
    """An engine with few pages, and the service of each tenant, counted from outside."""

    def __init__(self) -> None:
        info = make_info(page_size=PAGE_SIZE, pools=((None, N_PAGES),), max_model_len=LONGEST_PROMPT + LONGEST_ANSWER)
        super().__init__(info, max_sequences=3, max_step_tokens=16)
        self.works: list[Work] = []
        self.admitted: dict[int, None] = {}  # ids, in the order of their first steps

    def arrive(self, *works: Work) -> None:
        for work in works:
            number = len(self.works)
            prompt = [1 + (number + n) % 200 for n in range(work.n_prompt)]
            more = {"priority": work.priority, "tenant": work.tenant, "cache_salt": str(number)}
            self.submit(number, prompt, SamplingParams(max_tokens=work.max_tokens), **more)
            self.works.append(work)

    def step(self) -> StepBatch:
        batch = super().step()
        self.admitted |= dict.fromkeys(item.sequence_id for item in batch.slices)
        return batch

    def service(self, tenant: str) -> int:
        """Prompt tokens count when their sequence is first in a step."""
        mine = [number for number in self.admitted if self.works[number].tenant == tenant]
        prompts = sum(self.works[number].n_prompt for number in mine)
        return PROMPT_WEIGHT * prompts + GENERATED_WEIGHT * sum(len(self.answers[number]) for number in mine)

    def waiting(self) -> set[str]:
        """The tenants with a request of the usual priority in the queue."""
        late = (work for number, work in enumerate(self.works) if number not in self.admitted)
        return {work.tenant for work in late if not work.priority}

    def spread(self, one: str, other: str) -> int:
        """Step while both wait. The largest change of the difference of their service between two of these steps."""
        differences = []
        while {one, other} <= self.waiting():
            differences.append(self.service(one) - self.service(other))
            self.step()
        return max(differences) - min(differences)


@pytest.mark.parametrize(
    ("flood", "other"),
    [
        (Work("flood", LONGEST_PROMPT, LONGEST_ANSWER), Work("other")),
        (Work("flood", 1, LONGEST_ANSWER), Work("other", LONGEST_PROMPT, 0)),
        (Work("flood", LONGEST_PROMPT, 0), Work("other", 1, 1)),
    ],
    ids=["larger", "longer answers", "longer prompts"],
)
def test_a_flood_takes_no_more_than_its_share(flood: Work, other: Work) -> None:
    engine = Tenants()
    engine.arrive(*[flood] * 100, *[other] * 200)
    assert engine.spread("flood", "other") <= BOUND < engine.service("other") // 2
    engine.run()


def test_a_tenant_that_was_idle_gains_no_credit() -> None:
    engine = Tenants()
    engine.arrive(*[Work("busy")] * 80)
    while engine.service("busy") < 4 * BOUND:
        engine.step()
    engine.arrive(*[Work("idle")] * 60)
    before = engine.service("busy")
    assert engine.spread("busy", "idle") <= BOUND < engine.service("busy") - before
    engine.run()


def test_one_that_leaves_the_queue_empty_gives_the_next_no_credit() -> None:
    """Nobody waits when the second tenant comes, and a running sequence is no member of the queue."""
    engine = Tenants()
    for _ in range(60):
        engine.arrive(Work("busy"))
        engine.run()
    assert engine.service("busy") > 4 * BOUND
    engine.arrive(*[Work("idle")] * 40)
    engine.arrive(*[Work("busy")] * 40)
    assert engine.spread("busy", "idle") <= BOUND
    engine.run()


def test_who_waits_with_a_high_number_earns_no_credit_among_lower_ones() -> None:
    engine = Tenants()
    engine.arrive(Work("patient", priority=5), *[Work("busy")] * 60)
    while engine.service("busy") < 2 * BOUND:
        engine.step()
    assert 0 not in engine.admitted
    engine.arrive(*[Work("patient")] * 40)
    before = engine.service("busy")
    assert engine.spread("busy", "patient") <= BOUND < engine.service("busy") - before
    engine.run()
    assert list(engine.admitted)[-1] == 0


def test_a_tenant_is_served_in_order_of_arrival_and_alone_uses_everything() -> None:
    engine = Tenants()
    engine.arrive(*[Work("a")] * 5, *[Work("b")] * 5)
    engine.scheduler.abort(1)
    engine.run()
    of_a, of_b = [n for n in engine.admitted if n < 5], [n for n in engine.admitted if n >= 5]
    assert (of_a, of_b) == ([0, 2, 3, 4], [5, 6, 7, 8, 9])
    assert list(engine.admitted)[:4] == [0, 5, 2, 6]


works = st.builds(
    Work, st.sampled_from("abc"), st.integers(1, LONGEST_PROMPT), st.integers(0, LONGEST_ANSWER), st.integers(0, 1)
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), works, st.integers(1, 15)), min_size=3, max_size=9))
def test_random_bursts_are_shared_within_the_bound(load: list[tuple[int, Work, int]]) -> None:
    """As long as two tenants wait with the usual priority, whatever else arrives."""
    engine = Tenants()
    since: dict[tuple[str, str], list[int]] = {}
    for now in range(2000):
        for at, work, n in load:
            engine.arrive(*[work] * (n if at == now else 0))
        if not engine.scheduler.has_work and now > 40:
            break
        if engine.scheduler.has_work:
            engine.step()
        waiting = engine.waiting()
        for pair in combinations("abc", 2):
            if waiting.issuperset(pair):
                since.setdefault(pair, []).append(engine.service(pair[0]) - engine.service(pair[1]))
                assert max(since[pair]) - min(since[pair]) <= BOUND
            else:
                since.pop(pair, None)
    engine.check_idle()
    for number, work in enumerate(engine.works):
        prompt = [1 + (number + n) % 200 for n in range(work.n_prompt)]
        assert engine.answers[number] == expected(prompt, SamplingParams(max_tokens=work.max_tokens))


@settings(max_examples=50, deadline=None)
@given(st.lists(works, min_size=1, max_size=12))
def test_nobody_waits_while_there_is_space(load: list[Work]) -> None:
    """Work conservation, in an engine whose pages and steps hold everything."""
    engine = Drive(make_info(pools=((None, 400),)), max_sequences=3, max_step_tokens=400)
    for number, work in enumerate(load):
        params = SamplingParams(max_tokens=max(1, work.max_tokens))
        engine.submit(number, [1] * work.n_prompt, params, tenant=work.tenant, priority=work.priority)
    while engine.scheduler.has_work:
        unfinished = len(load) - len(engine.finished)
        assert len(engine.step().slices) == min(3, unfinished)


def test_choices_come_from_one_message_and_share_its_prompt_while_they_wait() -> None:
    info = make_info(pools=((None, 4096),), max_model_len=20_000)
    scheduler = Scheduler(info, max_sequences=4, max_step_tokens=64)
    request = Submit(1, [1 + n % 200 for n in range(10_000)], SamplingParams(max_tokens=4), n=128)
    tracemalloc.start()
    scheduler.submit(request)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scheduler.stats().waiting == 128
    assert used < 128 * 8 * 10_000 / 4  # a copy takes 8 bytes a token
    for sequence_id in request.ids:
        scheduler.abort(sequence_id)
    assert not scheduler.has_work
