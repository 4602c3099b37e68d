"""A step while the scheduler plans it, and until its result is committed."""

from collections.abc import Sequence as Items
from typing import overload

from model.batch import UNKNOWN, PageCopy, Slice, StepBatch
from service.engine.scheduling.media import MediaPlan
from service.engine.scheduling.prompt_lookup import DraftBudget
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
        self.drafts: dict[Sequence, list[int]] = {}
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
        slices = (_slice(sequence, stop, self.drafts.get(sequence, ())) for sequence, (_, stop) in self.parts.items())
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
        for sequence, (_, stop) in self.parts.items():
            if pays.is_spent:
                return
            params = sequence.params
            limit = min(params.prompt_lookup_num_tokens or 0, params.max_tokens - sequence.n_output - 1)
            if sequence.lookup is None or limit < 1 or stop < sequence.length:
                continue
            draft = sequence.lookup.draft(sequence.tokens, limit)
            available = min(table.capacity() - n_reserved * table.pool.page_size for table in sequence.tables) - stop
            n = min(len(draft), self.budget, available)
            if n > 0 and (n := pays.add(sequence.lookup.chances[:n])):
                for table in sequence.tables:
                    table.grow(stop + n)
                self.drafts[sequence] = draft[:n]
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
