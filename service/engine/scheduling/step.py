"""A step while the scheduler plans it, and until its result is committed."""

from model.batch import PageCopy, StepBatch
from service.engine.scheduling.images import ImagePlan
from service.engine.scheduling.prompt_lookup import DraftBudget
from service.engine.scheduling.sequence import Sequence

PATIENCE = 64
"""Steps after which memory may be free again."""


class StepLimit:
    """The greatest number of tokens of a step: `now` is less than `most` after a step that did not fit into memory."""

    def __init__(self, most: int, least: int) -> None:
        self.now = most
        self._most, self._least = most, least
        self._patience = 0

    def lower(self, n_tokens: int) -> None:
        """So many tokens did not fit."""
        self.now, self._patience = max(self._least, n_tokens // 2), PATIENCE

    def count(self) -> None:
        """A step was computed."""
        self._patience -= 1
        if self._patience <= 0:
            self.now, self._patience = min(self._most, 2 * self.now), PATIENCE


class Step:
    """A planned step: `parts` has first and end position of each sequence, `drafts` the draft tokens after them.

    `images` is its work on images, once all is planned. `copies` are the pages to copy before.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.parts: dict[Sequence, tuple[int, int]] = {}
        self.drafts: dict[Sequence, list[int]] = {}
        self.images = ImagePlan((), (), waits=False)
        self.copies: list[PageCopy] = []

    @property
    def encoded(self) -> frozenset[int]:
        """Numbers of the images on which there is work."""
        return frozenset(work.image for work in self.images.work)

    @property
    def sampling(self) -> list[Sequence]:
        """The sequences that get a token, while it is the step in flight: their parts end with their last token."""
        parts = self.parts.items()
        return [item for item, (_, stop) in parts if stop == item.length and item.n_output < item.params.max_tokens]

    def batch(self) -> StepBatch:
        """The step as the runner gets it."""
        slices = (sequence.slice(stop, self.drafts.get(sequence, ())) for sequence, (_, stop) in self.parts.items())
        return StepBatch(tuple(slices), self.images.work, self.images.forgotten, tuple(self.copies))

    def add(self, sequence: Sequence, n_tokens: int) -> None:
        self.parts[sequence] = (sequence.computed, sequence.computed + n_tokens)
        self.budget -= n_tokens

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.parts:
            start, stop = self.parts.pop(sequence)
            self.budget += stop - start

    def assume_computed(self) -> None:
        """Let its sequences continue behind it."""
        for sequence, (_, stop) in self.parts.items():
            sequence.computed = stop

    def add_drafts(self, n_tokens: int, n_kept: int) -> None:
        """Add draft tokens that pay, from the budget and the pages that are left.

        The step has `n_tokens` before. `n_kept` pages stay for the sequences of other steps in flight, one for each.
        """
        pays = DraftBudget(n_tokens)
        for sequence, (_, stop) in self.parts.items():
            params = sequence.params
            limit = min(params.prompt_lookup_num_tokens, params.max_tokens - sequence.n_output - 1)
            if limit < 1 or stop < sequence.length:
                continue
            draft = sequence.lookup.draft(sequence.tokens, limit)
            available = min(table.capacity() - n_kept * table.pool.page_size for table in sequence.tables) - stop
            n = min(len(draft), self.budget, available)
            if n > 0 and (n := pays.add(sequence.lookup.chances[:n])):
                for table in sequence.tables:
                    table.grow(stop + n)
                self.drafts[sequence] = draft[:n]
                self.budget -= n
