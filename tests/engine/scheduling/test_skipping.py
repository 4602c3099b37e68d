"""A scheduler that passes over decoding sequences, beside one that does not: every step must be the same."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from model.batch import SliceOutput, StepBatch, StepOutput
from model.sampling_params import SamplingParams
from service.engine.budget import Cost, PromptBudget
from service.engine.messages import Submit, Update
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.skipping import SkippingScheduler, visible
from tests.fakes import make_info

TENANTS = ("a", "b")
COST = Cost(1.0, 0.5, 1.0)


@dataclass
class Arrival:
    step: int
    prompt: list[int]
    n_output: int
    tenant: str


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 40),
    prompt=st.builds(
        lambda shared, own, token: [0] * shared + [token] * own, *[st.integers(0, 9)] * 2, st.integers(1, 9)
    ),
    n_output=st.integers(1, 40),
    tenant=st.sampled_from(TENANTS),
).filter(lambda arrival: bool(arrival.prompt))
pools = st.sampled_from((((None, 16),), ((None, 40),), ((5, 24),), ((9, 12), (None, 16)), ((3, 64), (16, 64))))


def answers(batch: StepBatch) -> StepOutput:
    """Each sequence repeats its own token."""
    sampled = (SkippingScheduler.answer(item.sequence_id) if item.samples else None for item in batch.slices)
    return StepOutput(tuple(SliceOutput(() if token is None else (token,)) for token in sampled))


def ends(updates: list[Update]) -> list[tuple[int, str | None, int | None]]:
    return sorted((item.id, item.finish, item.cached) for item in updates if item.finish or item.cached is not None)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=12),
    specs=pools,
    max_sequences=st.integers(1, 6),
    chunk=st.integers(0, 6),
    target=st.sampled_from([0.0, 4.0]),
)
def test_every_step_is_that_of_the_scheduler(
    requests: list[Arrival], specs: tuple, max_sequences: int, chunk: int, target: float
) -> None:
    info = make_info(page_size=4, pools=specs, max_model_len=64)
    limits = {"max_sequences": max_sequences, "max_step_tokens": max_sequences + chunk}
    whole = Scheduler(info, **limits, prompts=PromptBudget(target))
    skipping = SkippingScheduler(info, **limits, prompts=PromptBudget(target))
    number, step = 0, 0
    waiting = sorted(requests, key=lambda arrival: arrival.step)
    while number < len(waiting) or whole.has_work:
        while number < len(waiting) and waiting[number].step <= step:
            item = waiting[number]
            params = SamplingParams(temperature=0.0, max_tokens=item.n_output)
            for scheduler in (whole, skipping):
                scheduler.submit(Submit(number, [*item.prompt], params, tenant=item.tenant))
            number += 1
        expected, found = whole.plan(), skipping.plan()
        parts = {item.sequence_id: (item.start, item.stop, [*item.tokens]) for item in expected.slices}
        for item in found.slices:
            assert (item.start, item.stop, [*item.tokens]) == parts.pop(item.sequence_id)
        assert all(stop - start == 1 for start, stop, _ in parts.values())
        assert skipping.n_quiet == len(parts)
        assert skipping.quiet_keys == sum(visible(info.pools, start) for start, _, _ in parts.values())
        n_preempted = whole.stats().preemptions
        assert (n_preempted, whole.stats().pools) == (skipping.stats().preemptions, skipping.stats().pools)
        for scheduler in (whole, skipping):
            scheduler.prompts.note(
                len(expected.slices), expected.n_prompt, expected.n_pairs, COST.seconds(1, expected.n_prompt)
            )
        before = ends(whole.commit(answers(expected))) if expected else []
        assert ends(skipping.commit(answers(found))) == before
        assert whole.stats() == skipping.stats()
        step += 1
        assert step < 3000
    skipping.check_idle()


def test_a_long_answer_is_passed_over() -> None:
    """Of 48 steps only the prompt and the last one need a plan."""
    info = make_info(page_size=4, max_model_len=64)
    scheduler = SkippingScheduler(info, max_sequences=1, max_step_tokens=8)
    scheduler.submit(Submit(1, [5] * 4, SamplingParams(temperature=0.0, max_tokens=48)))
    planned = []
    while scheduler.has_work:
        batch = scheduler.plan()
        planned.append(len(batch.slices))
        scheduler.commit(answers(batch))
    assert len(planned) == 48
    assert sum(planned) == 2


def test_the_preempted_are_named() -> None:
    info = make_info(page_size=4, pools=((None, 6),), max_model_len=24)
    scheduler = SkippingScheduler(info, max_sequences=2, max_step_tokens=8)
    for number in (1, 2):
        scheduler.submit(Submit(number, [number] * 4, SamplingParams(temperature=0.0, max_tokens=16)))
    named = []
    while scheduler.has_work:
        batch = scheduler.plan()
        named += scheduler.preempted
        scheduler.commit(answers(batch))
    assert named
    assert len(named) == scheduler.stats().preemptions
