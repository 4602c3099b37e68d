"""Steps as rank 0 sends them to the other ranks: JSON that tells of each sequence only what is new.

A rank remembers the tokens and the page tables of the sequences that it has seen in the last `REMEMBERED` steps. Both
sides count the steps, and so forget the same sequences without a word. The encoder's inputs follow the JSON as bytes.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from model.batch import PageCopy, PageTable, Slice, StepBatch
from model.machine import records
from model.media import MediaWork, PlacedMedia
from model.sampling_params import SamplingParams
from model.token_counts import TokenCounts

REMEMBERED = 64
"""A sequence of which that many steps have nothing is sent anew: it has ended, waits, or was preempted."""

_params, _placed, _work = map(records.record, (SamplingParams, PlacedMedia, MediaWork))
NO_PAGES = PageTable(0, array("q"))


@dataclass(slots=True)
class KnownSequence:
    """One side's knowledge of a sequence: its tokens (rank 0 keeps only their number), its tables, its last step."""

    constants: tuple[int, SamplingParams, int, int]
    n_tokens: int = 0
    tables: tuple[PageTable, ...] = ()
    step: int = 0
    tokens: list[int] = field(default_factory=list)
    counts: TokenCounts = field(default_factory=TokenCounts)


class Memory:
    """The sequences that one side remembers, by id."""

    def __init__(self) -> None:
        self.step = 0
        self.sequences: dict[int, KnownSequence] = {}

    def begin_step(self) -> None:
        """Count a step, and forget what no recent step had."""
        self.step += 1
        oldest = self.step - REMEMBERED
        for number in [number for number, known in self.sequences.items() if known.step < oldest]:
            del self.sequences[number]


class PlanWriter:
    """Batches to JSON values and bytes. The tokens of a sequence only grow, but for the draft at their end."""

    def __init__(self) -> None:
        self._memory = Memory()

    def write(self, batch: StepBatch) -> tuple[list[Any], bytes]:
        """Write a plan and the bytes for the encoder behind it."""
        self._memory.begin_step()
        works = [[*records.row(work)[:3], len(work.inputs), *records.row(work)[4:]] for work in batch.media]
        plan = [[self._slice(item) for item in batch.slices], works, batch.forgotten, batch.copies]
        return plan, b"".join(work.inputs for work in batch.media)

    def _slice(self, item: Slice) -> list[Any]:
        constants = (item.n_prompt, item.params, item.choice, item.adapter)
        known = self._memory.sequences.get(item.sequence_id)
        n_final = len(item.tokens) - item.n_draft
        anew = known is None or known.constants != constants or known.n_tokens > n_final
        if known is None or anew:
            known = self._memory.sequences[item.sequence_id] = KnownSequence(constants)
        news = item.tokens[known.n_tokens :]
        before = known.tables or (NO_PAGES,) * len(item.tables)
        tables = [_difference(*pair) for pair in zip(before, item.tables, strict=True)]
        known.n_tokens, known.step, known.tables = n_final, self._memory.step, item.tables
        own = [item.sequence_id, item.start, item.stop, item.n_draft, list(news), tables, item.media]
        return [*own, constants] if anew else own


class PlanReader:
    """The batches that a `PlanWriter` has written, in the same order.

    The tokens of a slice are valid until the next plan is read: a list that all slices of its sequence share.
    """

    def __init__(self) -> None:
        self._memory = Memory()

    def read(self, plan: list[Any], inputs: bytes) -> StepBatch:
        """Read the batch of a plan. Raises KeyError for a plan out of order."""
        self._memory.begin_step()
        slices, works, forgotten, copies = plan
        copied = tuple(PageCopy(*copy) for copy in copies)
        return StepBatch(tuple(map(self._slice, slices)), tuple(_works(works, inputs)), tuple(forgotten), copied)

    def _slice(self, row: list[Any]) -> Slice:
        number, start, stop, n_draft, news, tables, media, *anew = row
        if anew:
            n_prompt, params, *others = anew[0]
            self._memory.sequences[number] = KnownSequence((n_prompt, _params(params), *others))
        known = self._memory.sequences[number]
        del known.tokens[known.n_tokens :]
        known.tokens += news
        before = known.tables or (NO_PAGES,) * len(tables)
        known.n_tokens, known.step = len(known.tokens) - n_draft, self._memory.step
        known.tables = tuple(_applied(*pair) for pair in zip(before, tables, strict=True))
        n_prompt, parameters, choice, adapter = known.constants
        placed = tuple(map(_placed, media))
        item = Slice(number, known.tokens, n_prompt, start, stop, known.tables, parameters, choice)
        return item._replace(n_draft=n_draft, media=placed, adapter=adapter, counts=known.counts)


def _difference(before: PageTable, after: PageTable) -> list[Any]:
    """Return first block, number of pages that stay, pages behind them."""
    if after is before:  # in most steps, a sequence takes no page
        return [after.first_block, len(after.pages), ()]
    gone = after.first_block - before.first_block
    stay = before.pages[gone:] if gone >= 0 else ()
    n_stay = len(stay) if after.pages[: len(stay)] == stay else 0
    return [after.first_block, n_stay, list(after.pages[n_stay:])]


def _applied(before: PageTable, difference: list[Any]) -> PageTable:
    first_block, n_stay, news = difference
    gone = first_block - before.first_block
    if not gone and n_stay == len(before.pages) and not news:
        return before
    kept = before.pages[gone : gone + n_stay] if n_stay else ()
    return PageTable(first_block, array("q", (*kept, *news)))


def _works(rows: list[list[Any]], inputs: bytes) -> Iterator[MediaWork]:
    """Yield the work of each row, which has a number of bytes for the bytes. A rank without the encoder gets none."""
    place = 0
    for row in rows:
        n_bytes = row[3]
        row[3] = memoryview(inputs)[place : place + n_bytes]
        place += n_bytes
        yield _work(row)
