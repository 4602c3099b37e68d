"""A step while the scheduler plans it, and until its result is committed."""

from collections.abc import Sequence as Items
from typing import overload

from model.batch import UNKNOWN, PageCopy, Slice, StepBatch
from service.engine.scheduling.drafts import Draft, DraftBudget
from service.engine.scheduling.media import MediaPlan
from service.engine.scheduling.sequence import Sequence

ASSUMED = (UNKNOWN,)


class Snapshot(Items[int]):
    """The tokens of a sequence at one moment: the known tokens, in a list that only grows, then a `tail`.

    It copies no known token, so that planning a step costs the same however long the sequence is.
    """

    __slots__ = ("_known", "_length", "_n_known", "_tail")

    def __init__(self, known: list[int], tail: tuple[int, ...] = ()) -> None:
        self._known = known
        self._n_known = len(known)
        self._tail = tail
        self._length = self._n_known + len(tail)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, where: int) -> int: ...

    @overload
    def __getitem__(self, where: slice) -> list[int]: ...

    def __getitem__(self, where: int | slice) -> int | list[int]:
        n = self._n_known
        if isinstance(where, slice):
            start, stop, step = where.indices(self._length)
            if step != 1:
                return [self[place] for place in range(start, stop, step)]
            known = self._known[start : min(stop, n)]
            return known if stop <= n else [*known, *self._tail[max(0, start - n) : stop - n]]
        place = where if 0 <= where < self._length else range(self._length)[where]
        return self._known[place] if place < n else self._tail[place - n]


class Step:
    """A planned step: `parts` has first and end position of each sequence, `drafts` the draft tokens after them.

    Prompts with media share `media_budget`, a part of the budget of all. `media` is the work on media, once all is
    planned. `copies` are the pages to copy before. `named` are the names that it gives to pages, each behind the number
    of its pool, and the sequences that compute the pages. Sequences planned from now on share them, in this step too.
    """

    def __init__(self, budget: int, media_budget: int) -> None:
        self.budget = budget
        self.media_budget = media_budget
        self.parts: dict[Sequence, tuple[int, int]] = {}
        self.drafts: dict[Sequence, Draft] = {}
        self.media = MediaPlan((), (), waits=False)
        self.copies: list[PageCopy] = []
        self.named: dict[tuple[int, bytes], Sequence] = {}

    @property
    def encoded(self) -> frozenset[int]:
        """Return the numbers of the media on which there is work."""
        return frozenset(work.number for work in self.media.work)

    @property
    def sampling(self) -> list[Sequence]:
        """Return the sequences that get a token while the step is in flight: their parts reach their last token."""
        parts = self.parts.items()
        return [item for item, (_, stop) in parts if stop == item.length and item.n_output < item.params.max_tokens]

    def batch(self) -> StepBatch:
        drafts = {sequence: draft.tokens for sequence, draft in self.drafts.items()}
        slices = (_slice(sequence, stop, drafts.get(sequence, ())) for sequence, (_, stop) in self.parts.items())
        return StepBatch(tuple(slices), self.media.work, self.media.forgotten, tuple(self.copies))

    def left(self, sequence: Sequence) -> int:
        return min(self.budget, self.media_budget) if sequence.awaits_media else self.budget

    def spend(self, sequence: Sequence, n_tokens: int) -> None:
        """Take tokens from the budget for a sequence, or give them back if they are below 0."""
        self.budget -= n_tokens
        self.media_budget -= n_tokens * sequence.awaits_media

    def add(self, sequence: Sequence, n_tokens: int) -> range:
        """Add the next tokens of a sequence, and name the pages that they fill; returns the blocks of these."""
        start, stop = self.parts[sequence] = (sequence.computed, sequence.computed + n_tokens)
        if full := sequence.full_blocks(start, stop):
            self.named |= dict.fromkeys(sequence.name_blocks(full), sequence)
        self.spend(sequence, n_tokens)
        return full

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.parts:
            start, stop = self.parts.pop(sequence)
            self.spend(sequence, start - stop)

    def names(self, name: bytes) -> bool:
        """Return whether it gives this name to a page."""
        return any(name == given for _, given in self.named)

    def take_names(self, sequence: Sequence) -> list[tuple[int, bytes]]:
        """Return the names that a sequence gives, and forget them."""
        names = [name for name, owner in self.named.items() if owner is sequence]
        for name in names:
            del self.named[name]
        return names

    def add_drafts(self, pays: DraftBudget, n_reserved: int) -> None:
        """Add draft tokens that pay, from the budget and the pages that are left.

        `n_reserved` pages stay for the sequences of other steps in flight, one for each.
        """
        passes: list[tuple[Sequence, Draft, Items[float]]] = []
        for sequence, (start, stop) in self.parts.items():
            if pays.is_spent:
                break
            most = self._most_drafts(sequence, stop, n_reserved)
            if most < 1 or stop < sequence.length:
                continue
            offers = list(sequence.offers(most, decodes=stop - start == 1))
            if not offers:
                continue
            draft, chances = max(offers, key=lambda one: pays.best_rate(one[1], has_passes=one[0].drafter.has_passes))
            if draft.drafter.has_passes:
                passes.append((sequence, draft, chances))
            else:
                self._take_draft(sequence, draft, pays.add(chances))
        for (sequence, draft, _), n in zip(passes, pays.add_passes([chances for *_, chances in passes]), strict=True):
            self._take_draft(sequence, draft, min(n, self._most_drafts(sequence, sequence.length, n_reserved)))

    def _most_drafts(self, sequence: Sequence, stop: int, n_reserved: int) -> int:
        """Return the number of draft tokens for which output, budget and pages have places."""
        available = min(table.capacity() - n_reserved * table.pool.page_size for table in sequence.tables) - stop
        return min(sequence.params.max_tokens - sequence.n_output - 1, self.budget, available)

    def _take_draft(self, sequence: Sequence, draft: Draft, n: int) -> None:
        """Add the first `n` tokens of a draft, with their pages."""
        if n < 1:
            return
        for table in sequence.tables:
            table.grow(sequence.length + n)
        self.drafts[sequence] = draft._replace(tokens=draft.tokens[:n])
        self.budget -= n


def _slice(sequence: Sequence, stop: int, draft: Items[int]) -> Slice:
    """Return the slice that computes a sequence up to position `stop - 1`, then the draft."""
    return Slice(
        sequence.id,
        Snapshot(sequence.tokens, ASSUMED if sequence.assumed else tuple(draft)),
        sequence.n_prompt,
        sequence.computed,
        stop + len(draft),
        tuple([table.view for table in sequence.tables]),
        sequence.params,
        sequence.choice,
        len(draft),
        sequence.media.placed(sequence.computed, stop) if sequence.media.spans else (),
        sequence.adapter,
        sequence.counts,
    )
