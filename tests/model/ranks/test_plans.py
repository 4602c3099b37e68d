"""Plans on the wire: whatever steps rank 0 sends, the other ranks compute the same ones."""

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.batch import PageCopy, PageTable, Slice, StepBatch
from model.machine import records
from model.media import MediaSpan, MediaWork, PlacedMedia
from model.ranks import plans
from model.ranks.plans import PlanReader, PlanWriter
from model.sampling_params import SamplingParams

PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=2000),
    SamplingParams(logit_bias=((3, 1.5), (4, -2.0)), stop=("a", "b"), bad_words=((1, 2), (3,)), seed=-(2**63)),
    SamplingParams(grammar='{"grammars": []}', logprobs=3, prompt_logprobs=0, stop_token_ids=(0, 2)),
]


class Sent:
    """Batches written on one side and read on the other, with the bytes of each."""

    def __init__(self) -> None:
        self._writer, self._reader = PlanWriter(), PlanReader()

    def __call__(self, batch: StepBatch) -> tuple[StepBatch, int]:
        plan, data = self._writer.write(batch)
        text = records.to_json(plan)
        return self._reader.read(json.loads(text), data), len(text) + len(data)


def plain(batch: StepBatch) -> StepBatch:
    """The batch with sequences of one type, which can be compared, and without counts, which are each side's own."""
    slices = []
    for item in batch.slices:
        tables = tuple(PageTable(table.first_block, list(table.pages)) for table in item.tables)
        slices.append(item._replace(tokens=list(item.tokens), tables=tables, counts=None))
    works = tuple(replace(work, inputs=bytes(work.inputs)) for work in batch.media)
    return StepBatch(tuple(slices), works, batch.forgotten, batch.copies)


@st.composite
def steps(draw: st.DrawFn) -> list[StepBatch]:
    """Steps of a few sequences that grow, guess drafts, lose blocks, are preempted, pause, and end."""
    number = st.integers(0, 3)
    tokens: dict[int, list[int]] = {}
    tables: dict[int, list[PageTable]] = {}
    batches = []
    for _ in range(draw(st.integers(1, 12))):
        slices = []
        for sequence in sorted(draw(st.sets(number, max_size=4))):
            before = tokens.get(sequence, [0])
            tokens[sequence] = before + draw(st.lists(st.integers(0, 99), max_size=3))
            tables[sequence] = [draw(changed(table)) for table in tables.get(sequence, [PageTable(0, [])] * 2)]
            draft = draw(st.lists(st.integers(0, 99), max_size=2))
            known = [*tokens[sequence], *draft]
            images = (PlacedMedia(5, MediaSpan(0, 2, 3, "digest")),) if draw(st.booleans()) else ()
            item = Slice(sequence, known, 1, len(known) - 1, len(known), tuple(tables[sequence]), PARAMS[sequence % 3])
            slices.append(item._replace(n_draft=len(draft), media=images, choice=sequence))
        pixels = draw(st.lists(st.binary(max_size=5), max_size=2))
        works = tuple(MediaWork(place, 1, 2, data, 0, 4, 4) for place, data in enumerate(pixels))
        copies = draw(st.lists(st.builds(PageCopy, number, number, number), max_size=2))
        batches.append(StepBatch(tuple(slices), works, tuple(draw(st.lists(number, max_size=2))), tuple(copies)))
    return batches


@st.composite
def changed(draw: st.DrawFn, table: PageTable) -> PageTable:
    """The table after a step: blocks leave at the front, pages follow at the end; or all is new."""
    if draw(st.integers(0, 5)) == 0:
        return PageTable(draw(st.integers(0, 3)), draw(st.lists(st.integers(0, 9), max_size=3)))
    gone = draw(st.integers(0, len(table.pages)))
    return PageTable(table.first_block + gone, [*table.pages[gone:], *draw(st.lists(st.integers(0, 9), max_size=2))])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps())
def test_any_steps_arrive_as_they_were_planned(batches: list[StepBatch]) -> None:
    send = Sent()
    for batch in batches:
        assert plain(send(batch)[0]) == plain(batch)


def test_a_sequence_that_pauses_is_forgotten_by_both_sides_and_sent_anew() -> None:
    send = Sent()
    item = Slice(1, [5, 6, 7], 3, 0, 3, (PageTable(0, [4]),), PARAMS[0])
    send(StepBatch((item,)))
    for _ in range(plans.REMEMBERED + 1):
        send(StepBatch((), forgotten=(1,)))
    after = StepBatch((item._replace(tokens=[5, 6, 7, 8], start=3, stop=4),))
    assert plain(send(after)[0]) == plain(after)


def test_a_step_of_64_long_sequences_is_a_few_kilobytes() -> None:
    """They have 8,000 tokens and 250 pages each; a step decodes one token of each, and one in 32 takes a page."""
    send, n = Sent(), 8000
    tokens = {sequence: [17] * n for sequence in range(64)}
    size = 0
    for step in range(2):
        slices = []
        for sequence, known in tokens.items():
            known.append(123)
            pages = list(range(sequence * 1000, sequence * 1000 + 250 + (step and sequence % 32 == 0)))
            slices.append(Slice(sequence, known, n, len(known) - 1, len(known), (PageTable(0, pages),), PARAMS[0]))
        arrived, size = send(StepBatch(tuple(slices)))
        assert plain(arrived) == plain(StepBatch(tuple(slices)))
    assert size < 64 * 64
